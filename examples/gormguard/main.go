// Gormguard withdraws money from an account in a transaction of GORM that the lock of the account guards.
//
//	DATABASE_URL=postgres://localhost/shop go run ./gormguard alice 500
//
// Two replicas that withdraw from one account do so one after the other, and each sees the balance that the
// other one has left. If one is suspended between the limit check and the write, the guard refuses its write.
package main

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/sqltx"
)

// Wallet is a row of the table wallets, as GORM maps it.
type Wallet struct {
	Owner string `gorm:"primaryKey"`
	Cents int64
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) != 3 {
		log.Fatal("usage: gormguard OWNER CENTS")
	}
	cents, err := strconv.ParseInt(os.Args[2], 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	if err := run(ctx, os.Args[1], cents); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, owner string, cents int64) error {
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close()
	if err := migrations.UpDB(ctx, db); err != nil {
		return err
	}
	client, err := pglock.OpenDB(ctx, db)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	orm, err := gorm.Open(postgres.New(postgres.Config{Conn: db}), &gorm.Config{})
	if err != nil {
		return err
	}
	err = client.Do(ctx, "tables of gormguard", func(ctx context.Context, _ *pglock.Lease) error {
		orm := orm.WithContext(ctx) // not by two replicas at once, of which one would fail
		return errors.Join(orm.AutoMigrate(&Wallet{}),
			orm.Clauses(clause.OnConflict{DoNothing: true}).Create(&Wallet{"alice", 10_000}).Error)
	})
	if err != nil {
		return err
	}
	limit := func(context.Context, string, int64) error { return nil } // stands for a limit check
	return (&wallets{client, orm, limit}).Withdraw(ctx, owner, cents)
}

type wallets struct {
	client *pglock.Client
	orm    *gorm.DB
	limit  func(ctx context.Context, owner string, cents int64) error // asks another service
}

var errFunds = errors.New("gormguard: not enough money")

// Withdraw changes a balance that it has read. Because it does so under the lock, the row needs no version. After
// an error of the commit, the outcome may be unknown: see transfer for an id that makes it safe to repeat.
func (w *wallets) Withdraw(ctx context.Context, owner string, cents int64) error {
	return w.client.Do(ctx, "wallet:"+owner, func(ctx context.Context, l *pglock.Lease) error {
		if err := w.limit(ctx, owner, cents); err != nil {
			return err
		}
		return w.orm.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			if err := l.Guard(ctx, gormTx(tx)); err != nil {
				return err // another holder of the lock: nothing is read or written
			}
			var wallet Wallet
			if err := tx.Take(&wallet, "owner = ?", owner).Error; err != nil {
				return err
			}
			if cents <= 0 || wallet.Cents < cents {
				return errFunds
			}
			return tx.Model(&wallet).Update("cents", wallet.Cents-cents).Error
		})
	}, pglock.WithWait(10*time.Second))
}

// gormTx returns the transaction of GORM for the guard.
func gormTx(tx *gorm.DB) *sqltx.Tx {
	pool := tx.Statement.ConnPool
	if prepared, ok := pool.(*gorm.PreparedStmtTX); ok { // with PrepareStmt
		pool = prepared.Tx
	}
	own, _ := pool.(sqltx.SQLTx) // nil outside a transaction: then the guard fails
	return sqltx.Wrap(own)
}
