-- The demo's own tables, in the schema that holds pglock's.
--
-- ledger has one balance for each act. entries has a row for each deposit, written
-- in the same transaction: what the balance should be, and who wrote with which
-- token (0 without a lock), in which order.
CREATE TABLE pglock.ledger (
    account text   PRIMARY KEY,
    balance bigint NOT NULL
);
CREATE TABLE pglock.entries (
    n       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account text   NOT NULL REFERENCES pglock.ledger,
    worker  text   NOT NULL,
    token   bigint NOT NULL
);
