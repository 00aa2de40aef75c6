package testserver

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// named returns the server of URLVariable. If it can't be reached that is an error: who names a server wants that one.
func named(ctx context.Context, c config) (*Shared, error) {
	parsed, err := pgx.ParseConfig(c.url)
	if err != nil {
		return nil, fmt.Errorf("testserver: %s: %w", URLVariable, err)
	}
	if err := ping(ctx, c.url); err != nil {
		return nil, fmt.Errorf("testserver: %s: %w", URLVariable, err)
	}
	return &Shared{URL: c.url, Way: WayURL, Detail: fmt.Sprintf("%s:%d", parsed.Host, parsed.Port)}, nil
}
