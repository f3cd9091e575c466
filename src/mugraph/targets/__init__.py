"""Printers of the lowered form, one package per target."""
