"""Looking at data, views and what was learnt."""
