package adapters_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// Account is a row of the table accounts, as GORM maps it.
type Account struct {
	ID      string
	Balance int
}

// gormTx returns the transaction of GORM for Guard, Bind, and packages advisory and rowlock.
func gormTx(tx *gorm.DB) *sqltx.Tx {
	pool := tx.Statement.ConnPool
	if prepared, ok := pool.(*gorm.PreparedStmtTX); ok { // with PrepareStmt
		pool = prepared.Tx
	}
	own, _ := pool.(sqltx.SQLTx) // nil outside a transaction: then Guard fails
	return sqltx.Wrap(own)
}

func withdrawGORM(ctx context.Context, db *gorm.DB, guard guard, id string, amount int) error {
	return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := guard(ctx, gormTx(tx)); err != nil {
			return err
		}
		var a Account
		if err := tx.Clauses(clause.Locking{Strength: "NO KEY UPDATE"}).First(&a, "id = ?", id).Error; err != nil {
			return err
		}
		return tx.Model(&a).Update("balance", a.Balance-amount).Error
	})
}

func openGORM(db *sql.DB, prepare bool) *gorm.DB {
	return must(gorm.Open(postgres.New(postgres.Config{Conn: db}), &gorm.Config{PrepareStmt: prepare, Logger: logger.Discard}))
}

// A lease guards a transaction of GORM, which also locks the row that it changes.
func Example_gorm() {
	ctx := context.Background()
	db, client, end := bank(ctx)
	defer end()
	orm := openGORM(db, false)

	err := client.Do(ctx, "account:17", func(ctx context.Context, l *pglock.Lease) error {
		return withdrawGORM(ctx, orm, l.Guard, "17", 30)
	})
	fmt.Println("left:", balance(ctx, db), err)

	stale, _ := overtaken(ctx, client, db) // a holder that was paused for too long
	err = withdrawGORM(ctx, orm, stale.Guard, "17", 30)
	fmt.Println("left:", balance(ctx, db), "stale:", errors.Is(err, pglock.ErrStale))
	// Output:
	// left: 70 <nil>
	// left: 70 stale: true
}
