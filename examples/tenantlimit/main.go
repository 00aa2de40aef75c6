// Tenantlimit serves exports with a limit for each tenant and one for all tenants together.
//
//	DATABASE_URL=postgres://localhost/shop go run ./tenantlimit & curl localhost:8080/exports/red
//
// Two replicas, the second one with ADDR=:8081, respect the same limits: a third export of a tenant gets status
// 429, whichever replica it reaches. The permits of a replica that dies are free again when their leases have
// expired. While the database is unreachable no export begins, so the limits hold then too.
package main

import (
	"cmp"
	"context"
	"errors"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
)

// The numbers of permits must be the same in all replicas. Client.Resize changes them.
const perTenant, inTotal = 2, 3

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrations.Up(ctx, pool); err != nil {
		return err
	}
	client, err := pglock.Open(ctx, pool)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	mux := http.NewServeMux() // a service takes the tenant from the login, and so limits the names of locks
	mux.Handle("GET /exports/{tenant}", &exports{client, func(_ context.Context, tenant string) ([]byte, error) {
		return []byte("the data of " + tenant + "\n"), nil
	}})
	server := &http.Server{Addr: cmp.Or(os.Getenv("ADDR"), ":8080"), Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second}
	stopped := make(chan error, 1)
	context.AfterFunc(ctx, func() { stopped <- server.Shutdown(context.WithoutCancel(ctx)) }) // waits for exports
	log.Print("ready: serves exports at ", server.Addr)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

type exports struct {
	client *pglock.Client
	export func(ctx context.Context, tenant string) ([]byte, error)
}

// ServeHTTP exports the data of a tenant, or answers at once if one of the limits is reached. The answer is
// sent when the export is complete and its permits were held until then.
func (e *exports) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	tenant := r.PathValue("tenant")
	both := e.client.All(e.client.Semaphore("exports:"+tenant, perTenant), e.client.Semaphore("exports", inTotal))
	var data []byte
	err := both.TryDo(r.Context(), func(ctx context.Context, _ *pglock.Lease) (err error) {
		data, err = e.export(ctx, tenant)
		return err
	})
	var busy *pglock.BusyError
	switch {
	case err == nil:
		_, _ = w.Write(data) // the client may have left
	case errors.As(err, &busy):
		w.Header().Set("Retry-After", "5")
		http.Error(w, "all permits are in use: "+busy.Name, http.StatusTooManyRequests)
	case errors.Is(err, pglock.ErrUnavailable), errors.Is(err, pglock.ErrLost):
		w.Header().Set("Retry-After", "5")
		http.Error(w, "try again", http.StatusServiceUnavailable)
	default:
		log.Printf("export of %q: %v", tenant, err)
		http.Error(w, "the export failed", http.StatusInternalServerError)
	}
}
