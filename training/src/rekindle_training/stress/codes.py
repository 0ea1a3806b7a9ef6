"""Operations of a stress test and codes of their results, as the contract numbers them; known to ranks and to the manager."""

PRODUCTS, MESSAGES, MEMORY = 0, 1, 2
"""The third one is ours alone."""

NAMES = {PRODUCTS: "aic", MESSAGES: "hccs", MEMORY: "memory"}
"""Keys of results."""

OK, NOT_RUN, FAULT, TIMED_OUT = "0", "1", "2", "3"
