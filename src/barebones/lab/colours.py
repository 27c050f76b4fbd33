"""Colours: one for each method, the same in every plot and on every page, told apart by colour-blind eyes too."""

from __future__ import annotations

COLOURS: dict[str, str] = {  # the first six are Okabe and Ito's; the others stand far from them in red-green blindness
    "force": "#D55E00",
    "iter-snip": "#0072B2",
    "hybrid": "#CC79A7",
    "snip": "#56B4E9",
    "grasp": "#009E73",
    "iter-grasp": "#E69F00",
    "snip-mb": "#332288",
    "grasp-mb": "#661100",
    "grasp-taylor": "#004D40",
    "synflow": "#D4C200",
    "magnitude": "#882255",
    "erk": "#8C510A",
    "random": "#686868",
    "dense": "#000000",
    "file": "#999999",
}
MARKERS: dict[str, str] = {  # by the letters that Matplotlib gives them; colours that are near have other marks
    "force": "o",
    "iter-snip": "s",
    "hybrid": "D",
    "snip": "^",
    "grasp": "v",
    "iter-grasp": "P",
    "snip-mb": "D",
    "grasp-mb": "s",
    "grasp-taylor": "^",
    "synflow": "o",
    "magnitude": "v",
    "erk": "X",
    "random": "X",
    "dense": "o",
    "file": "P",
}
