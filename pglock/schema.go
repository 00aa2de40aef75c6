package pglock

// Schema returns the name of the schema that holds the tables.
func (c *Client) Schema() string { return c.schema }
