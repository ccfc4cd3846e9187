"""restaurant-approval: an order waits for a person's decision."""
