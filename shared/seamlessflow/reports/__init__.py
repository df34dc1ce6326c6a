"""What a run came to, from its journal: ledger, view, summary, HTML. Pure but for the files that are written."""
