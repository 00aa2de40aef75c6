package pglock

import (
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/leasetable"
)

// Option configures a Client. Each LeaseOption is an Option too: given to Open,
// it becomes the default of that client's leases.
type Option = leasetable.Option

// LeaseOption configures one lease.
type LeaseOption = leasetable.LeaseOption

// TxOption configures DoTx. Those of package advisory are meant.
type TxOption = advisory.DoOption

// WithSchema names the schema that holds the tables. Default "pglock".
func WithSchema(name string) Option { return leasetable.WithSchema(name) }

// WithMaxConns bounds the client's own connections, 2 at least, without the one that listens. Default 4.
func WithMaxConns(n int) Option { return leasetable.WithMaxConns(n) }

// WithLogger has failed renewals, losses and failed clean-ups logged. Default: none is.
func WithLogger(l *slog.Logger) Option { return leasetable.WithLogger(l) }

// WithTTL sets how long a grant lasts when it isn't renewed, 10 ms to 10 years.
// Default 30 s.
func WithTTL(d time.Duration) LeaseOption { return leasetable.WithTTL(d) }

// WithSafetyMargin sets how long before the server's expiry the holder stops
// trusting the lease. Default a tenth of the TTL, 5 s at most.
func WithSafetyMargin(d time.Duration) LeaseOption { return leasetable.WithSafetyMargin(d) }

// WithRenewEvery sets the time between renewals. Default a third of the TTL, or
// half of the trusted time if that is less.
func WithRenewEvery(d time.Duration) LeaseOption { return leasetable.WithRenewEvery(d) }

// WithoutRenewal lets the lease end after its TTL, unless Ensure extends it.
func WithoutRenewal() LeaseOption { return leasetable.WithoutRenewal() }

// WithHolder sets the holder's name, as others see it. Default: host name,
// process id and a random part.
func WithHolder(name string) LeaseOption { return leasetable.WithHolder(name) }

// WithLabels stores labels with the grant, 16 KiB at most as JSON. Default none.
func WithLabels(labels map[string]string) LeaseOption { return leasetable.WithLabels(labels) }

// WithTimeout bounds the wait of DoTx for its lock. Default: as long as the context lasts.
func WithTimeout(d time.Duration) TxOption { return advisory.WithTimeout(d) }

// WithPolling has DoTx ask again and again, without a connection between two questions, instead of
// blocking in the server, for waits that may be long. Default: block.
func WithPolling() TxOption { return advisory.WithPolling() }

// WithPoolWait bounds the wait of DoTx for a connection of the pool. Default 10 s.
func WithPoolWait(d time.Duration) TxOption { return advisory.WithPoolWait(d) }

// WithIsolation sets the isolation level of DoTx's transaction. Default: the server's default.
func WithIsolation(level pgx.TxIsoLevel) TxOption { return advisory.WithIsolation(level) }

// WithAccessMode makes DoTx's transaction read-only or read-write. Default: the server's default.
func WithAccessMode(mode pgx.TxAccessMode) TxOption { return advisory.WithAccessMode(mode) }

// WithRetry has DoTx run the transaction again, and the function with it, up to n times after a serialization
// failure or a deadlock. Default 0.
func WithRetry(n int) TxOption { return advisory.WithRetry(n) }

// WithKeys has DoTx lock these too, in the same order for everybody. See Client.Key.
func WithKeys(keys ...advisory.Key) TxOption { return advisory.WithKeys(keys...) }

// WithPollOnly has waiters poll instead of a connection listen for notifications: for poolers in transaction
// mode. Default: listen.
func WithPollOnly() Option { return leasetable.WithPollOnly() }

// WithListener gives the listening connection a connection string of its own, past a pooler. Default: the pool's.
func WithListener(connString string) Option { return leasetable.WithListener(connString) }

// WithBarging lets a caller overtake those who wait. Default: first come, first served.
func WithBarging() LeaseOption { return leasetable.WithBarging() }

// WithRetention has the rows of names deleted that nobody has held for that long. Default 24 h.
func WithRetention(d time.Duration) Option { return leasetable.WithRetention(d) }

// WithoutPruning keeps the rows of all names ever granted, unless Prune is called.
func WithoutPruning() Option { return leasetable.WithoutPruning() }
