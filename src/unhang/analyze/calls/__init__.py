"""The recorded calls: aligned by group and number, and where the ranks' programs part in them."""
