//! Bit streams, little-endian: bit k of the stream is bit k % 8 of byte k / 8. Widths up to 57, so that one unaligned
//! 8-byte load always holds the whole value.
const std = @import("std");
const assert = std.debug.assert;

const width_max = 57;

pub fn mask(width: u6) u64 {
    return (@as(u64, 1) << width) - 1;
}

/// Bytes that hold `count` bits.
pub fn bytes_for(count: u64) u64 {
    return (count + 7) / 8;
}

pub const BitWriter = struct {
    bytes: []u8,
    /// Bits written so far.
    bit: usize = 0,

    /// Writes into `bytes`, which the caller has made large enough.
    pub fn init(bytes: []u8) BitWriter {
        return .{ .bytes = bytes };
    }

    /// Appends the low `width` bits of `value`; the rest of `value` must be zero.
    pub fn write(self: *BitWriter, value: u64, width: u6) void {
        assert(width <= width_max);
        assert(value & ~mask(width) == 0);
        var rest = value;
        var left: u32 = width;
        while (left > 0) {
            const used: u3 = @intCast(self.bit % 8);
            const room = @min(left, 8 - @as(u32, used));
            const byte = &self.bytes[self.bit / 8];
            if (used == 0) byte.* = 0;
            byte.* |= @truncate((rest & mask(@intCast(room))) << used);
            rest >>= @intCast(room);
            left -= room;
            self.bit += room;
        }
    }

    /// Bytes touched so far; the last one is filled up with zeros.
    pub fn written(self: *const BitWriter) []u8 {
        return self.bytes[0..bytes_for(self.bit)];
    }
};

/// Reads past the end give zeros and never fault, so that damaged bytes cannot crash a decoder: a decoder asks
/// `overrun` when it is through.
pub const BitReader = struct {
    bytes: []const u8,
    /// Bits consumed so far.
    bit: usize = 0,

    pub fn init(bytes: []const u8) BitReader {
        return .{ .bytes = bytes };
    }

    /// The next `width` bits, not consumed.
    pub inline fn peek(self: *const BitReader, width: u6) u64 {
        assert(width <= width_max);
        const byte = self.bit / 8;
        const shift: u6 = @intCast(self.bit % 8);
        const word = if (byte + 8 <= self.bytes.len)
            std.mem.readInt(u64, self.bytes[byte..][0..8], .little)
        else
            self.tail(byte);
        return (word >> shift) & mask(width);
    }

    inline fn consume(self: *BitReader, width: usize) void {
        self.bit += width;
    }

    pub inline fn read(self: *BitReader, width: u6) u64 {
        const value = self.peek(width);
        self.consume(width);
        return value;
    }

    /// More bits were consumed than there are.
    fn overrun(self: *const BitReader) bool {
        return self.bit > self.bytes.len * 8;
    }

    fn tail(self: *const BitReader, byte: usize) u64 {
        var word: u64 = 0;
        if (byte >= self.bytes.len) return 0;
        for (self.bytes[byte..], 0..) |b, i| word |= @as(u64, b) << @intCast(8 * i);
        return word;
    }
};

test "what was written is read back, at every width and offset" {
    const Prng = @import("prng.zig").Prng;
    for (0..200) |seed| {
        errdefer std.debug.print("seed {}\n", .{seed});
        var prng = Prng.init(seed);
        var values: [100]u64 = undefined;
        var widths: [100]u6 = undefined;
        var buffer: [100 * 8]u8 = undefined;
        @memset(&buffer, 0xff); // the writer clears what it uses
        var writer = BitWriter.init(&buffer);
        for (&values, &widths) |*value, *width| {
            width.* = @intCast(prng.below(width_max + 1));
            value.* = prng.next() & mask(width.*);
            writer.write(value.*, width.*);
        }
        var reader = BitReader.init(writer.written());
        for (values, widths) |value, width| {
            try std.testing.expectEqual(value, reader.peek(width));
            try std.testing.expectEqual(value, reader.read(width));
        }
        try std.testing.expect(!reader.overrun());
        try std.testing.expectEqual(writer.bit, reader.bit);
    }
}

test "reading past the end gives zeros and is noticed" {
    var reader = BitReader.init(&.{ 0xff, 0x01 });
    try std.testing.expectEqual(0x1ff, reader.read(57));
    try std.testing.expect(reader.overrun());
    try std.testing.expectEqual(0, reader.read(57));
    reader.consume(1 << 40);
    try std.testing.expectEqual(0, reader.peek(9));
    var empty = BitReader.init(&.{});
    try std.testing.expectEqual(0, empty.read(0));
    try std.testing.expect(!empty.overrun());
}

test "the bit order is the one written down" {
    var buffer: [3]u8 = undefined;
    var writer = BitWriter.init(&buffer);
    writer.write(0b101, 3);
    writer.write(0b11110000_1, 9);
    try std.testing.expectEqualSlices(u8, &.{ 0b00001_101, 0b1111 }, writer.written());
}
