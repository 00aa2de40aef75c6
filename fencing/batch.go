package fencing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
)

// sender is a pool, a connection or a transaction of pgx.
type sender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

const stillBoundSQL = "SELECT pglock.require_bound($1::text, $2::bigint)"

// Batch runs the statements of b as the holder of the grant f, all or nothing. It sends Bind and
// the statements as one transaction, in one round trip. (A connection that has not seen a statement
// before needs one more round trip to prepare it.) If the grant is refused, the server skips the
// rest.
//
// On success everything is committed, and on an error nothing is. The errors are those of Bind, or
// the error of a statement of b or of the commit, through Explain. If the connection is lost, the
// outcome of the commit may be unknown, as with any commit. An error that a callback in b returns
// comes after the commit was sent, and does not stop it.
//
// If db is a transaction, the statements become part of it, at its isolation level, and Batch does
// not commit it; after an error, roll back. A db that has only the method SendBatch can't say
// whether it is in a transaction: it is ErrInvalidOption.
//
// The statements must not end the transaction. If they do, Batch returns ErrInvalidOption: its last
// statement finds that it does not run in the transaction of Bind. Statements before a COMMIT in b
// are then committed, as the holder. Those after it are undone, unless b has committed them too.
//
// ctx bounds the call, and b can be sent once, like any pgx.Batch.
func Batch(ctx context.Context, db sender, f Fence, b *pgx.Batch) error {
	if err := f.check(); err != nil {
		return err
	}
	if db == nil || b == nil {
		return errs.Errorf("%w: the database or the batch is nil", ErrInvalidOption)
	}
	within, known := inTransaction(db)
	if !known {
		return errs.Errorf("%w: a %T can't say whether it is in a transaction: pass a pool, a connection or a transaction", ErrInvalidOption, db)
	}
	checked := slices.ContainsFunc(b.QueuedQueries, func(q *pgx.QueuedQuery) bool { return !isPlain(q.SQL) })
	begin := checked && !within
	guarded, outcomes := &pgx.Batch{}, map[string]error{} // of what this function adds
	queue := func(statement string) {
		guarded.Queue(schema.Render(statement, f.schemaName()), f.Name, int64(f.Token)).Fn = func(results pgx.BatchResults) error {
			_, err := results.Exec()
			outcomes[statement] = err
			return err
		}
	}
	if begin {
		guarded.BeginTx(pgx.TxOptions{})
	}
	queue(bindSQL)
	guarded.QueuedQueries = append(guarded.QueuedQueries, b.QueuedQueries...)
	if checked {
		queue(stillBoundSQL)
	}
	if begin {
		guarded.Queue("commit")
	}
	results := db.SendBatch(ctx, guarded)
	if tx := results.Tx(); tx != nil {
		// After the commit it only returns the connection to the pool. If it fails, pgx closes the
		// connection.
		defer func() { _ = pgtx.CleanUp(ctx, tx.Rollback) }()
	}
	err := results.Close()                // reads until the server has answered the commit
	var refused pgx.ErrPreprocessingBatch // by pgx, before it sent anything
	refusal, sent := outcomes[bindSQL]
	switch {
	case pgtx.SQLState(outcomes[stillBoundSQL]) == codeUnfenced:
		return errs.Errorf("%w: the batch has ended the transaction that it was sent in: %w", ErrInvalidOption, err)
	case err == nil || sent && refusal == nil || errors.As(err, &refused) && refused.SQL() != schema.Render(bindSQL, f.schemaName()):
		return Explain(err)
	}
	return explainCall(f.schemaName(), fmt.Sprintf("batch of %q", f), err)
}

// plainWords begin statements that need no explicit transaction and can't end one.
var plainWords = []string{"SELECT", "INSERT", "UPDATE", "DELETE", "WITH"}

// isPlain reports whether a text is certainly one plain statement: it begins with a plain word and
// contains no semicolon. The server runs statements that are sent together as one transaction, so a
// batch of plain statements needs no BEGIN, no COMMIT, and no check of the transaction at its end.
func isPlain(sql string) bool {
	word, _, found := strings.Cut(strings.TrimSpace(sql), " ")
	return found && !strings.Contains(sql, ";") && slices.Contains(plainWords, strings.ToUpper(word))
}

// inTransaction reports whether a sender is in a transaction. That is known of a transaction of the
// caller's, and of a pool or a connection, in which a statement may have begun one.
func inTransaction(db sender) (within, known bool) {
	const idle = 'I'
	switch db.(type) {
	case interface {
		Commit(ctx context.Context) error
	}:
		return true, true
	case interface {
		Begin(ctx context.Context) (pgx.Tx, error)
	}:
		conn := pgtx.Conn(db)
		return conn != nil && !conn.IsClosed() && conn.PgConn().TxStatus() != idle, true
	}
	return false, false
}
