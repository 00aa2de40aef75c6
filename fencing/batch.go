package fencing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Sender is a pool, a connection or a transaction of pgx.
type Sender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// rollbackBound is how long the rollback of a refused batch may take.
const rollbackBound = 5 * time.Second

// endingWords begin statements that could take what follows them out of the guard.
var endingWords = []string{"ABORT", "BEGIN", "COMMIT", "END", "PREPARE", "ROLLBACK", "START"}

// plainWords begin statements that can't end a transaction by any means. (CALL and DO can
// from inside, unless an explicit one is around them; VACUUM and others would.)
var plainWords = []string{"SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "WITH", "VALUES", "TABLE"}

// Batch carries out the statements of b as the holder of the grant f, all or nothing: Bind
// and the statements are sent at once, as one transaction, and take one round trip. (A
// connection that meets a statement for the first time needs another one to prepare it.)
// Where the grant is refused, the server skips the rest.
//
// On success all is committed. On an error nothing is: those of Bind, or what a
// statement of b or the commit came to, through Explain. But if the connection is lost on
// the way, what became of the commit is not known, as with any commit. What a callback in b
// returns comes when the commit is on its way already, and does not stop it.
//
// If db is a transaction, the statements become part of it, at its isolation level, and
// it is not committed; after an error, roll back.
//
// A batch that begins or ends transactions itself is ErrInvalidOption, and nothing is
// sent: what came after that would not be guarded. Statements that were prepared under a
// name must not do so either. ctx bounds the call. Like any pgx.Batch, b can be sent once.
func Batch(ctx context.Context, db Sender, f Fence, b *pgx.Batch) error {
	if err := f.check(); err != nil {
		return err
	}
	if db == nil || b == nil {
		return fmt.Errorf("%w: the database or the batch is nil", ErrInvalidOption)
	}
	begin, err := needsBegin(db, b)
	if err != nil {
		return err
	}
	guarded, bound := guardedBatch(f, b, begin)
	results := db.SendBatch(ctx, guarded)
	if tx := results.Tx(); tx != nil {
		defer func() { // after the commit it only gives the connection back
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackBound)
			defer cancel()
			_ = tx.Rollback(ctx) // where it fails, pgx closes the connection
		}()
	}
	err = results.Close() // reads up to the server's word on the commit
	if err == nil || *bound || ofTheCaller(err, guarded, begin) {
		return Explain(err)
	}
	return explainCall(f.schemaName(), fmt.Sprintf("batch of %v", f), err)
}

// needsBegin reports whether the statements of b need BEGIN and COMMIT around them. As a
// rule they do not: what is sent up to one Sync message, or in one string, is a
// transaction, and an error skips the rest of it and undoes what was done.
func needsBegin(db Sender, b *pgx.Batch) (bool, error) {
	where := placeOf(db)
	needed := false
	for _, q := range b.QueuedQueries {
		for _, word := range firstWords(q.SQL) {
			switch {
			case slices.Contains(endingWords, word):
				return false, fmt.Errorf("%w: %s in a guarded batch", ErrInvalidOption, word)
			case slices.Contains(plainWords, word) || where == inTransaction:
			case where == unknown:
				return false, fmt.Errorf("%w: %s in a batch on a %T, which does not tell whether it is in a transaction", ErrInvalidOption, word, db)
			default:
				needed = true
			}
		}
	}
	return needed, nil
}

// guardedBatch puts the guard in front of the statements of b, and a transaction around
// them if they need it. bound becomes true when the guard has passed.
func guardedBatch(f Fence, b *pgx.Batch, begin bool) (guarded *pgx.Batch, bound *bool) {
	guarded, bound = &pgx.Batch{}, new(bool)
	if begin {
		guarded.BeginTx(pgx.TxOptions{})
	}
	guarded.Queue(render(bindSQL, f.schemaName()), f.Name, int64(f.Token)).Fn = func(results pgx.BatchResults) error {
		_, err := results.Exec()
		*bound = err == nil
		return err
	}
	guarded.QueuedQueries = append(guarded.QueuedQueries, b.QueuedQueries...)
	if begin {
		guarded.Queue("commit")
	}
	return guarded, bound
}

// ofTheCaller reports whether pgx refused a statement of the caller's before it sent
// anything.
func ofTheCaller(err error, guarded *pgx.Batch, begun bool) bool {
	var refused pgx.ErrPreprocessingBatch
	guard := 0
	if begun {
		guard = 1
	}
	return errors.As(err, &refused) && refused.SQL() != guarded.QueuedQueries[guard].SQL
}

// place is where a Sender's statements go.
type place int

const (
	unknown       place = iota // it has SendBatch alone
	inTransaction              // of the caller's
	byItself                   // a pool, or a connection that is in no transaction
)

func placeOf(db Sender) place {
	if _, commits := db.(interface {
		Commit(ctx context.Context) error
	}); commits {
		return inTransaction
	}
	if _, begins := db.(interface {
		Begin(ctx context.Context) (pgx.Tx, error)
	}); !begins {
		return unknown
	}
	var conn *pgx.Conn
	switch c := db.(type) {
	case *pgx.Conn:
		conn = c
	case interface{ Conn() *pgx.Conn }: // a pool's connection
		conn = c.Conn()
	}
	const idle = 'I'
	if conn == nil || conn.IsClosed() || conn.PgConn().TxStatus() == idle {
		return byItself
	}
	return inTransaction // a statement has begun it
}
