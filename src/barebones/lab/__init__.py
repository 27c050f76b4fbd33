"""The lab: experiments with the library."""
