package rowlock

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
)

// Option changes how a call locks its rows. Reserve and Restock know only NoWait.
type Option interface{ bits() option }

type option uint8

func (o option) bits() option { return o }

// The options.
const (
	// NoWait makes the call fail at once, with advisory.ErrNotAcquired, if another transaction
	// holds a row, or holds the whole table for a millisecond.
	NoWait option = 1 << iota

	// SkipLocked leaves out the rows that other transactions hold, and so also those that are
	// missing. A lock on the whole table is still waited for.
	SkipLocked

	// AllowMissing leaves out the keys that have no row, which are otherwise a *MissingError.
	AllowMissing

	// ForNoKeyUpdate is weaker than FOR UPDATE, like the next two: see the package's documentation.
	ForNoKeyUpdate
	// ForShare is for rows that must not change.
	ForShare
	// ForKeyShare is for rows that must not be deleted, nor get another key.
	ForKeyShare
)

var (
	waits     = map[option]string{0: "", NoWait: "NOWAIT", SkipLocked: "SKIP LOCKED"}
	strengths = map[option]string{0: "UPDATE", ForNoKeyUpdate: "NO KEY UPDATE", ForShare: "SHARE", ForKeyShare: "KEY SHARE"}
)

// combine returns the options that a call allows as one, and the words that they stand for in SQL.
func combine(opts []Option, allowed option) (all option, words []string, err error) {
	if err := errs.ApplyBy("rowlock", &all, opts, func(o Option, all *option) error { *all |= o.bits(); return nil }); err != nil {
		return 0, nil, err
	}
	wait, one := waits[all&(NoWait|SkipLocked)]
	strength, only := strengths[all&(ForNoKeyUpdate|ForShare|ForKeyShare)]
	if all&^allowed != 0 || !one || !only {
		return 0, nil, errs.InvalidOption("rowlock", "options: NoWait and SkipLocked exclude each other, so do ForNoKeyUpdate, ForShare and ForKeyShare, "+
			"and Reserve and Restock allow only NoWait")
	}
	return all, []string{":wait", wait, ":strength", strength}, nil
}

// Lock locks the rows with these keys, FOR UPDATE unless an option names another strength, until tx
// ends or is rolled back to an earlier savepoint. It returns the keys in the order of the table's
// key. Read the rows afterwards with a SELECT of your own, which sees what the last holder
// committed.
//
// Rows are locked in the order of the key, so that calls do not deadlock with each other. Lock
// waits for rows that other transactions hold until ctx is done: its deadline bounds all waits
// together.
//
// K is a string, an integer, a [16]byte for uuid, a driver.Valuer or an encoding.TextMarshaler. Two
// keys that are equal for the server are an error. Without keys nothing is sent.
//
// On failure no row is locked, and tx and its lock_timeout are unchanged, so that tx remains usable
// (unless the connection broke, or ctx ended and tx is neither from pgx nor from sqltx). The error
// is a *NotAcquiredError if the wait ended, a *MissingError if a key has no row, or it wraps
// advisory.ErrTx, advisory.ErrInvalidOption or the server's error.
func Lock[K comparable](ctx context.Context, tx advisory.Tx, table Table, keys []K, opts ...Option) ([]K, error) {
	how, words, err := combine(opts, ^option(0))
	if err != nil {
		return nil, err
	}
	if err := checkNames(table.Name, table.Key); err != nil {
		return nil, err
	}
	array, err := keyArray(keys)
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	q := table.render(statements["lock"], []any{array}, words...)
	c := &call{tx: tx, table: table.quoted(), noWait: how&NoWait != 0, begun: time.Now()}
	return run(ctx, c, func(ctx context.Context) ([]K, error) {
		rows, err := collect(ctx, tx, q, pgx.RowTo[[]int32])
		if err != nil {
			return nil, err
		}
		locked, found := make([]K, len(rows)), make([]bool, len(keys))
		for i, positions := range rows {
			at, err := table.match(positions, found)
			if err != nil {
				return nil, err
			}
			locked[i] = keys[at]
		}
		if none := missing(keys, found); none != nil && how&(AllowMissing|SkipLocked) == 0 {
			return nil, c.refuseMissing(ctx, table, none, refusal{&MissingError{Table: c.table, Keys: none}})
		}
		return locked, nil
	})
}

// missing returns the keys that were not found.
func missing[K any](keys []K, found []bool) (none []any) {
	for i, k := range keys {
		if !found[i] {
			none = append(none, k)
		}
	}
	return none
}

// Claim runs the caller's SELECT on a queue, and locks and returns the rows that no other
// transaction has locked. It waits for none of them.
//
//	jobs, err := rowlock.Claim(ctx, tx, pgx.RowToStructByName[job], "jobs",
//		"SELECT id, payload FROM jobs WHERE state = 'ready' AND due <= now() ORDER BY due LIMIT $1", 10)
//
// Claim appends FOR UPDATE OF queue SKIP LOCKED to sql, so that it can't be forgotten. queue is the
// table as the SELECT calls it: its alias, or its name without the schema. The rows of other tables
// in the SELECT are not locked. The server refuses a SELECT whose rows can't be locked, such as one
// with GROUP BY or one from a WITH query. args are the arguments of sql, and scan is a function
// like pgx.RowTo and pgx.RowToStructByName.
//
// Delete the rows in tx, or change the columns that WHERE compares, and commit: then the work is
// done. If tx is rolled back, or the process dies, the rows are unlocked and unchanged. So each row
// is worked on at least once, and its changes in the database are made exactly once.
//
// Fewer rows than LIMIT do not mean that the queue is empty, because other transactions may hold
// some, or have just changed them. No row is not an error. Failures and ctx are as for Lock: Claim
// does wait for a lock on the whole table, until ctx is done.
func Claim[T any](ctx context.Context, tx advisory.Tx, scan pgx.RowToFunc[T], queue, sql string, args ...any) ([]T, error) {
	if err := checkNames(nil, queue); err != nil {
		return nil, err
	}
	// On a new line, so that a comment at the end of sql can't hide it.
	text := strings.TrimRight(sql, "; \t\r\n") + "\nFOR UPDATE OF " + schema.Quote(queue) + " SKIP LOCKED"
	return run(ctx, &call{tx: tx, table: schema.Quote(queue), begun: time.Now()}, func(ctx context.Context) ([]T, error) {
		return collect(ctx, tx, pgtx.Query{SQL: text, Args: args}, scan)
	})
}
