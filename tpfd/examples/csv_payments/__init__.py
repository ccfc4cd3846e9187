"""csv-payments: every row of a CSV file is asked of a payment provider; the answers become one output file."""
