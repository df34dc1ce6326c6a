"""Publishing weights versions: as whole files, as changes, or as adapters."""
