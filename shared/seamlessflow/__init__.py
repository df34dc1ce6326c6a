"""The library of SeamlessFlow: contracts, bus, runtime, weights, and the command."""
