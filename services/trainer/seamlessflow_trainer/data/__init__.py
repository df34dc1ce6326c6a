"""From deliveries of samples to packed batches."""
