"""The paper's tables and figures as data, the book of finished runs, and what leads from one to the other."""
