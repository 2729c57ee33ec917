"""The formats: each answers where the bytes are and where they should go. See table.py."""
