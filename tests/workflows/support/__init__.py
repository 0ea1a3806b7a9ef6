"""Opening dialogues, payloads and clusters that several tests of workflows share."""
