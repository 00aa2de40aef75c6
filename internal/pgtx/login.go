package pgtx

import (
	"errors"
	"net"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/errs"
)

// LoginRejected reports whether the server is there and has rejected the login of a new connection:
// unknown role, wrong password, unknown database, missing right CONNECT, or pg_hba.conf. Further
// attempts are rejected too until an operator changes that.
//
// With several hosts, the last attempt counts: an unreachable host may still become the primary.
// The addresses of one host are one server, which need not listen on all of them.
func LoginRejected(err error) bool {
	attempts, config := attemptsOf(err)
	if severalHosts(config) && len(attempts) > 0 {
		attempts = attempts[len(attempts)-1:]
	}
	rejections := []string{InvalidAuthorization, InvalidPassword, InvalidCatalogName, InsufficientPrivilege}
	return slices.ContainsFunc(attempts, func(attempt error) bool { return slices.Contains(rejections, SQLState(attempt)) })
}

// Unanswered reports whether a dial failed without an answer: no host was reached, or none of those
// that were has answered in time.
func Unanswered(err error) bool {
	attempts, _ := attemptsOf(err)
	return len(attempts) > 0 && !slices.ContainsFunc(attempts, func(attempt error) bool {
		var op *net.OpError
		unreached := errors.As(attempt, &op) && op.Op == "dial"
		return !unreached && !pgconn.Timeout(attempt)
	})
}

// attemptsOf returns what the attempts of a dial that failed have come to, one for each address.
func attemptsOf(err error) ([]error, *pgconn.Config) {
	var connect *pgconn.ConnectError
	if !errors.As(err, &connect) {
		return nil, nil
	}
	if all, ok := connect.Unwrap().(interface{ Unwrap() []error }); ok {
		return all.Unwrap(), connect.Config
	}
	return []error{connect.Unwrap()}, connect.Config
}

// ExplainLogin returns an error that wraps errs.ErrLogin if LoginRejected(err), and otherwise err.
func ExplainLogin(err error) error {
	if !LoginRejected(err) {
		return err
	}
	return errs.Errorf("%w: %w", errs.ErrLogin, err)
}

func severalHosts(c *pgconn.Config) bool {
	return c != nil && slices.ContainsFunc(c.Fallbacks, func(f *pgconn.FallbackConfig) bool {
		return f.Host != c.Host || f.Port != c.Port
	})
}
