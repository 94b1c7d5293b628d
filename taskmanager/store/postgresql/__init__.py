"""The store on PostgreSQL. Its SQL is that of `store.sql`, put into PostgreSQL's words."""
