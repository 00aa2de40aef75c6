package pgtx

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATEs, by the names of PostgreSQL's appendix "Error Codes".
const (
	ActiveSQLTransaction            = "25001"
	InvalidTransactionTermination   = "2D000"
	NoActiveSQLTransaction          = "25P01"
	InFailedSQLTransaction          = "25P02"
	IdleInTransactionSessionTimeout = "25P03"
	TransactionTimeout              = "25P04"

	FeatureNotSupported     = "0A000"
	ReadOnlySQLTransaction  = "25006"
	InvalidAuthorization    = "28000"
	InvalidPassword         = "28P01"
	InvalidCatalogName      = "3D000"
	InvalidSQLStatementName = "26000"
	InvalidSchemaName       = "3F000"
	UndefinedTable          = "42P01"
	UndefinedColumn         = "42703"
	UndefinedFunction       = "42883"
	UndefinedObject         = "42704"
	DuplicateTable          = "42P07"
	DuplicateSchema         = "42P06"
	DuplicateObject         = "42710"
	InsufficientPrivilege   = "42501"
	SyntaxError             = "42601"
	InvalidName             = "42602"

	DuplicatePreparedStatement = "42P05"

	NumericValueOutOfRange     = "22003"
	UniqueViolation            = "23505"
	CheckViolation             = "23514"
	SerializationFailure       = "40001"
	StatementCompletionUnknown = "40003"
	DeadlockDetected           = "40P01"
	ProgramLimitExceeded       = "54000"
	LockNotAvailable           = "55P03"
	QueryCanceled              = "57014"
	AdminShutdown              = "57P01"
	CrashShutdown              = "57P02"
	CannotConnectNow           = "57P03"
	IdleSessionTimeout         = "57P05"
)

// DataException is a class of SQLSTATEs, their first two characters.
const DataException = "22"

// SQLState returns the code of the server's error in err's chain, and "" if there is none. It
// works for every driver whose errors have the method SQLState() string, like those of pgx.
func SQLState(err error) string {
	if err == nil {
		return "" // errors.As would allocate
	}
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState()
	}
	return ""
}

// PlanChanged reports whether the server refused a prepared statement because its result has other
// types than when it was prepared, as after the tables were dropped and made again. Nothing was
// executed. The SQLSTATE has other meanings, the routine has not.
func PlanChanged(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == FeatureNotSupported && refused.Routine == "RevalidateCachedQuery"
}
