"""What Tenure decides, without a clock, a die or a wait: records in, decisions out."""
