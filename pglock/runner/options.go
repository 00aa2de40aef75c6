package runner

import (
	"crypto/rand"
	"fmt"
	"hash/crc32"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/quiet"
	"github.com/pglock/pglock-go/pglock"
)

// Option configures Run, Wrap or Guard. All are for Run, whereas Wrap and Guard refuse those that
// have no effect on them.
type Option func(*config) error

type config struct {
	timeout  time.Duration // 0: until ctx ends
	interval time.Duration // between two reports to the logger
	logger   *slog.Logger
	caller   string          // its name as a holder
	granted  func(heldLocks) // for tests: called with the locks when they are granted; may be nil

	name   string // empty: named after the version table
	schema string // of the version table; empty: the connection's
	table  string
	key    *int64 // of another program's lock; nil for none
	client *pglock.Client
	lease  []pglock.LeaseOption

	allowNewer, outOfOrder bool
	changed                []uint
	onlyRun                string // the last option that Wrap and Guard refuse
}

func newConfig(opts []Option) (*config, error) {
	host, _ := os.Hostname() // empty if the system does not know it
	c := &config{
		interval: defaultInterval, table: defaultTable,
		caller: fmt.Sprintf("%.22s:%d:%.4s", host, os.Getpid(), rand.Text()),
	}
	err := errs.Apply("runner", c, opts)
	c.logger = quiet.Logger(c.logger)
	return c, err
}

// WithTimeout bounds the wait for the lock. When the time has passed, the error is a
// *pglock.WaitError that wraps pglock.ErrTimeout, and nothing of the waiter is left on the server.
// Default: until ctx ends; for Wrap, four fifths of golang-migrate's DefaultLockTimeout.
func WithTimeout(d time.Duration) Option {
	return func(c *config) error {
		c.timeout = d
		return errs.Require("runner", d > 0, "WithTimeout: %v: must be positive", d)
	}
}

// WithLogger logs who holds the lock during a wait (after 1 s, and then every 5 s), applied
// migrations, and locks that could not be released. Nil, which is the default, means no logger:
// failures are returned as errors in any case.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) error { c.logger = l; return nil }
}

// WithHolder sets the name that waiters see as the holder of the lock. PostgreSQL keeps 63 bytes of
// ASCII of it for an advisory lock. Default: host name, process id and a random suffix.
func WithHolder(name string) Option {
	return func(c *config) error {
		c.caller = name
		return checkText("WithHolder", name)
	}
}

// WithName sets the name of the lock. Runs with the same name on the same database exclude each
// other. Default: a name made of the version table's schema and name, the same for Run and Wrap.
func WithName(name string) Option {
	return func(c *config) error {
		c.name = name
		return checkText("WithName", name)
	}
}

// WithLease makes the lock a lease of client instead of a session's advisory lock, for databases
// behind a pooler in transaction mode, and for locks that `pglock ls` lists.
func WithLease(client *pglock.Client, opts ...pglock.LeaseOption) Option {
	return func(c *config) error {
		c.client, c.lease = client, opts
		return errs.Require("runner", client != nil, "WithLease: the client is nil")
	}
}

// WithKey makes a run acquire the advisory lock of another program too, pg_advisory_lock(id), after
// its own, while replicas of the previous release still migrate under the lock of golang-migrate
// ([GolangMigrateKey]) or goose (gooselock.DefaultKey): see Rolling out above.
//
// The wait polls for both locks, and WithTimeout bounds it. The other lock needs a session, so
// WithKey does not work behind a pooler in transaction mode, also if the run's own lock is a lease.
// Replicas of the previous release hold a snapshot while they wait, so CREATE INDEX CONCURRENTLY
// waits for them. Default: the run's own lock only.
func WithKey(id int64) Option {
	return func(c *config) error { c.key = &id; return nil }
}

// GolangMigrateKey returns the number of the advisory lock that golang-migrate's drivers for
// PostgreSQL (pgx/v5, pgx, postgres) acquire, for WithKey.
//
// databaseName is the name that the driver was given. For WithInstance that is the server's
// current_database(), unless the Config sets another. For a driver that was opened from a URL, as
// golang-migrate's command does, it is the path of the URL with its slash: "/shop". schema and
// table are those of the version table, by default the connection's current_schema() and
// "schema_migrations".
func GolangMigrateKey(databaseName, schema, table string) int64 {
	const salt = 1486364155 // of database.GenerateAdvisoryLockId; a test compares the results
	return int64(crc32.ChecksumIEEE([]byte(strings.Join([]string{schema, table, databaseName}, "\x00"))) * salt)
}

// AllowNewer makes Run return nil, and change nothing, if the database's version is higher than the
// last one of the source: see Rolling out above. Run can't distinguish a later release from another
// program that uses the same version table. Default: ErrUnknownVersion.
func AllowNewer() Option {
	return func(c *config) error { c.allowNewer, c.onlyRun = true, "AllowNewer"; return nil }
}

// AllowOutOfOrder makes Run run migrations that were added below the database's version, before
// those above it. The version stays. Use it if the order of the files that were merged late does
// not matter. Default: ErrOutOfOrder.
func AllowOutOfOrder() Option {
	return func(c *config) error { c.outOfOrder, c.onlyRun = true, "AllowOutOfOrder"; return nil }
}

// AllowChanged accepts that the files of these versions have changed since they were applied, for
// instance in a comment. Run does not run them again, and the record keeps the checksums of the
// files that ran, so replicas of a release with the earlier files still start. Line endings do not
// count as a change. Default: ErrChanged.
func AllowChanged(versions ...uint) Option {
	return func(c *config) error {
		c.changed, c.onlyRun = append(c.changed, versions...), "AllowChanged"
		return nil
	}
}

// WithVersionTable sets the table in which Run records the version, in golang-migrate's form. For
// Wrap, it says which table the driver uses, since the lock is named after it. An empty schema
// means the first one of the connection's search_path. Default: schema_migrations, as for
// golang-migrate.
func WithVersionTable(schema, table string) Option {
	return func(c *config) error {
		c.schema, c.table = schema, table
		return checkText("WithVersionTable", table)
	}
}

func checkText(option, text string) error {
	if err := errs.CheckText(text, 0); err != nil {
		return errs.InvalidOption("runner", "%s: %w", option, err)
	}
	return nil
}
