"""What is chosen for one finished plan alone, because only the simulator sees it.

Front doors: `interleaving.interleave` (more chunks for each device), `reduce_choice.choose_reduce`
(gradient sums beside or after backward passes), `in_flight_choice.choose_in_flight`,
`divided_state.choose_divided` (layers whose optimizer state replicas divide).
"""
