"""Which methods still reach the dense run's target, after how many steps, bytes and predicted seconds?"""
