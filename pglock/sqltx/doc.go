// Package sqltx gives a transaction of database/sql, on pgx's stdlib driver, the methods of a pgx
// transaction. With it, services whose queries go through a *sql.DB can use the packages of this
// module: what takes a transaction of pgx takes it, and so do the functions that also take a pool,
// such as fencing.Protect and once.Get. pglock.OpenDB opens a client with a *sql.DB.
//
//	tx, err := db.BeginTx(ctx, nil)
//	...
//	defer tx.Rollback()
//	if err := lease.Guard(ctx, sqltx.Wrap(tx)); err != nil {
//		return err
//	}
//	... tx.ExecContext(ctx, ...) as before
//	return tx.Commit()
//
// # GORM, sqlx, sqlc, ent
//
// Each library has its own way to a transaction. The Tx that Wrap returns works with Guard and Bind
// of a lease, advisory.Lock, and package rowlock, beside the row locks of the library itself:
//
//	library   the transaction                           for this module
//	sqlx      tx, err := db.BeginTxx(ctx, nil)          sqltx.Wrap(tx)
//	sqlc      tx, err := db.BeginTx(ctx, nil)           sqltx.Wrap(tx), and queries.WithTx(tx)
//	ent       tx, err := client.Tx(ctx)                 sqltx.Wrap(tx), with ent's feature sql/execquery
//	GORM      db.Transaction(func(tx *gorm.DB) error)   gormTx(tx)
//
// For GORM, copy this function, which also finds the transaction of a session with PrepareStmt:
//
//	func gormTx(tx *gorm.DB) *sqltx.Tx {
//		pool := tx.Statement.ConnPool
//		if prepared, ok := pool.(*gorm.PreparedStmtTX); ok { // with PrepareStmt
//			pool = prepared.Tx
//		}
//		own, _ := pool.(sqltx.SQLTx) // nil outside a transaction: then Guard fails
//		return sqltx.Wrap(own)
//	}
//
// internal/adapters has a guarded transaction for each library, with tests.
//
// # Same as with pgx
//
//   - Values: the connection's own type map scans them. Arrays, ranges, JSON and registered types
//     scan into the same Go types, and pgx.RowToStructByName and similar functions work.
//   - Arguments: pgx receives them unchanged, also pgx.NamedArgs.
//   - Errors: errors.As finds the server's *pgconn.PgError, and errors.Is finds pgx.ErrNoRows, and
//     pgx.ErrTxClosed beside sql.ErrTxDone.
//
// # Different from pgx
//
//   - A context that ends during a statement cancels the statement and keeps the connection. If a
//     savepoint was set before, the transaction can continue from there. (The context passed to
//     BeginTx is different: when it ends, database/sql rolls back.)
//   - Query reads all rows before it returns, so they need not be closed and the transaction is
//     ready for the next statement, but the result must fit into memory.
//   - Each statement is a round trip, because there is no SendBatch.
//   - A command tag has the number of rows but not the command, and field descriptions have only
//     name, type and format. Values that database/sql returns decoded are encoded again for
//     RawValues: binary where pgx's default is binary, but not always the bytes that the server
//     sent.
//   - A type that was registered with pgx under a name in mixed case is not recognized, because
//     database/sql reports the name in upper case.
//   - Commit and Rollback ignore their context, because database/sql takes none.
//
// Package sqltx works through drivers that wrap pgx's, for tracing for example, if they pass
// arguments on unchanged, while on any other driver every statement returns advisory.ErrDriver.
package sqltx
