"""Pruning: the one idea. A method is a criterion, a number of rounds, a schedule and a rule of revival."""
