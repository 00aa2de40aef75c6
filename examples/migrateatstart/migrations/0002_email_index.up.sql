CREATE UNIQUE INDEX CONCURRENTLY accounts_email ON accounts (lower(email));
