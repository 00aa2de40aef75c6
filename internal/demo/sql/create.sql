-- The demo's own tables. The search_path names their schema, which also has pglock's.
--
-- ledger has one balance per act. entries has a row per deposit, written in the same
-- transaction: what the balance should be, and who wrote with which token (0 without
-- a lock), in which order.
CREATE TABLE ledger (
    account text   PRIMARY KEY,
    balance bigint NOT NULL
);
CREATE TABLE entries (
    n       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account text   NOT NULL REFERENCES ledger,
    worker  text   NOT NULL,
    token   bigint NOT NULL
);
