package testserver_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
)

// xzStored wraps data in an .xz file without compressing it, as in "The .xz File Format" 1.2.1: a stream header, one
// block of uncompressed LZMA2 chunks, an index and a footer.
func xzStored(data []byte) []byte {
	var file bytes.Buffer
	flags := []byte{0x00, 0x01} // the check is CRC32
	file.Write([]byte{0xFD, '7', 'z', 'X', 'Z', 0x00})
	file.Write(flags)
	writeCRC(&file, flags)

	block := file.Len()
	header := []byte{
		2,                // size: 12 bytes with the CRC
		0x00,             // one filter, no sizes
		0x21, 0x01, 0x16, // LZMA2 with a dictionary of 8 MiB
		0, 0, 0,
	}
	file.Write(header)
	writeCRC(&file, header)
	control := byte(0x01) // the first chunk resets the dictionary
	for rest := data; len(rest) > 0; control = 0x02 {
		n := min(len(rest), 1<<16)
		file.WriteByte(control)
		file.Write(binary.BigEndian.AppendUint16(nil, uint16(n-1)))
		file.Write(rest[:n])
		rest = rest[n:]
	}
	file.WriteByte(0x00)
	unpadded := file.Len() - block + crc32.Size
	pad(&file)
	writeCRC(&file, data)

	index := bytes.NewBuffer([]byte{0x00})
	index.Write(binary.AppendUvarint(nil, 1)) // one block
	index.Write(binary.AppendUvarint(nil, uint64(unpadded)))
	index.Write(binary.AppendUvarint(nil, uint64(len(data))))
	pad(index)
	file.Write(index.Bytes())
	writeCRC(&file, index.Bytes())

	footer := binary.LittleEndian.AppendUint32(nil, uint32((index.Len()+crc32.Size)/4-1))
	footer = append(footer, flags...)
	writeCRC(&file, footer)
	file.Write(footer)
	file.WriteString("YZ")
	return file.Bytes()
}

func writeCRC(to *bytes.Buffer, of []byte) {
	to.Write(binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(of)))
}

func pad(b *bytes.Buffer) {
	for b.Len()%4 != 0 {
		b.WriteByte(0)
	}
}
