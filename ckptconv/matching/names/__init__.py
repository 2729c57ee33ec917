"""Pairs by what names say."""
