// Package sqltx gives a transaction of database/sql, on pgx's stdlib driver, the methods
// that this module asks of a transaction, for services whose queries go through sqlc or
// GORM on a *sql.DB:
//
//	tx, err := db.BeginTx(ctx, nil)
//	...
//	defer tx.Rollback()
//	if err := advisory.Lock(ctx, sqltx.Wrap(tx), key); err != nil {
//		return err
//	}
//	... tx.ExecContext(ctx, ...) as before
//	return tx.Commit()
//
// With GORM, tx is db.Statement.ConnPool.(*sql.Tx) of the *gorm.DB inside a transaction, or
// db.Statement.ConnPool.(*gorm.PreparedStmtTX).Tx.(*sql.Tx) where PrepareStmt is on.
//
// # What is the same as with pgx
//
//   - Values: they are scanned by the connection's own type map, so arrays, ranges, JSON
//     and registered types go into what pgx would put them in, and pgx.RowToStructByName
//     and its like work.
//   - Arguments: pgx gets them as they are, also pgx.NamedArgs.
//   - Errors: errors.As finds the server's *pgconn.PgError, errors.Is pgx.ErrNoRows, and
//     pgx.ErrTxClosed where database/sql says sql.ErrTxDone.
//
// # What is not
//
//   - A context that ends during a statement cancels that statement, not the connection:
//     if a savepoint was set before, the transaction goes on from there. (The context given
//     to BeginTx is another matter: when it ends, database/sql rolls back.)
//   - Rows are read to their end before Query returns. So they need not be closed, and the
//     transaction is free for the next statement; but do not read a million of them here.
//   - Each statement is a round trip: there is no SendBatch.
//   - A command tag has the number of rows and not the command, and field descriptions have
//     name, type and format only. Values that database/sql hands over decoded are encoded
//     again for RawValues: binary where pgx's default is binary, but not always the bytes
//     that the server sent.
//   - A type that was registered with pgx under a name of small and capital letters mixed is not
//     recognized: database/sql tells the name in capitals.
//   - Commit and Rollback take no part of ctx: database/sql has none to give.
//
// It works through drivers that wrap pgx's, for tracing say, if they pass arguments on
// unchanged. On any other driver every statement returns [ErrDriver].
package sqltx
