package rowlock

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// Quantity is how quantities are given: as whole numbers, or as decimals.
type Quantity interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | Decimal
}

// Decimal is an exact decimal number, written like 12 or 0.125.
type Decimal string

// maxDigits is more than a numeric column can be declared with.
const maxDigits = 1000

// Int64 returns a whole number, or an error if it is none or does not fit.
func (d Decimal) Int64() (int64, error) {
	whole, fraction, _ := strings.Cut(string(d), ".")
	if strings.Trim(fraction, "0") != "" {
		return 0, fmt.Errorf("%w: %s is no whole number", ErrRange, d)
	}
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrRange, err)
	}
	return n, nil
}

// positive checks that it is a number greater than 0.
func (d Decimal) positive() error {
	whole, fraction, point := strings.Cut(string(d), ".")
	digits := whole + fraction
	switch {
	case whole == "" || point && fraction == "" || strings.Trim(digits, "0123456789") != "":
		return invalidOption("quantity %q, it must be a positive number like 3 or 0.125", string(d))
	case strings.Trim(digits, "0") == "":
		return invalidOption("a quantity of %s, it must be positive", d)
	case len(digits) > maxDigits:
		return invalidOption("a quantity of %d digits, the most is %d", len(digits), maxDigits)
	}
	return nil
}

// decimal returns a quantity as a positive decimal.
func decimal[Q Quantity](q Q) (Decimal, error) {
	var d Decimal
	switch v := reflect.ValueOf(q); {
	case v.CanInt():
		d = Decimal(strconv.FormatInt(v.Int(), 10))
		if v.Int() < 0 {
			return "", invalidOption("a quantity of %s, it must be positive", d)
		}
	case v.CanUint():
		d = Decimal(strconv.FormatUint(v.Uint(), 10))
	default:
		d = Decimal(v.String())
	}
	return d, d.positive()
}
