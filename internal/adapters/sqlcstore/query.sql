-- name: Balance :one
SELECT balance FROM accounts WHERE id = $1;

-- name: LockAccount :one
SELECT balance FROM accounts WHERE id = $1 FOR NO KEY UPDATE;

-- name: SetBalance :exec
UPDATE accounts SET balance = $2 WHERE id = $1;
