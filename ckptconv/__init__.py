"""Convert checkpoints between frameworks' formats without any of the frameworks."""

__version__ = "0.1.0"
