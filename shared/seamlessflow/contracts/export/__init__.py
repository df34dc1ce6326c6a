"""Files that are derived from the contracts: schemas, AsyncAPI, permissions, pages of the documentation."""
