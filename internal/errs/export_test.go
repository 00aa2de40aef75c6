package errs

// Prefixes begin the errors of this module's packages.
var Prefixes = prefixes
