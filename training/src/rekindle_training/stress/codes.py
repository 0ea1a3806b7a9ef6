"""Operations of a stress test and codes of their results, as the contract numbers them; known to ranks and to the manager."""

PRODUCTS, MESSAGES, MEMORY = 0, 1, 2
"""Numbers of the operations. The third one is defined by Rekindle, not by the contract."""

NAMES = {PRODUCTS: "aic", MESSAGES: "hccs", MEMORY: "memory"}
"""Names of the operations, which are the keys of results."""

OK, NOT_RUN, FAULT, TIMED_OUT = "0", "1", "2", "3"
