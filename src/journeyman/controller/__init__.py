"""The reinforcement-learning controller: placement on Ray, prompt order, groups, recovery."""
