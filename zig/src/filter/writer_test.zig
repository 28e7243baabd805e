//! Writes programs in tests, as velo/filters/program.py does.
const std = @import("std");
const program = @import("program.zig");
const Column = @import("column.zig").Column;
const Opcode = program.Opcode;

pub const Writer = struct {
    alloc: std.mem.Allocator,
    columns: []const Column,
    instructions: std.ArrayList(u8) = .empty,
    operands: std.ArrayList(u64) = .empty,
    count: u32 = 0,

    pub fn deinit(self: *Writer) void {
        self.instructions.deinit(self.alloc);
        self.operands.deinit(self.alloc);
    }

    pub fn put(self: *Writer, opcode: Opcode, column: u16, count: u32, values: []const u64) !void {
        var bytes: [16]u8 = @splat(0);
        bytes[0] = @intFromEnum(opcode);
        std.mem.writeInt(u16, bytes[2..4], column, .little);
        std.mem.writeInt(u32, bytes[4..8], count, .little);
        std.mem.writeInt(u64, bytes[8..16], self.operands.items.len, .little);
        try self.instructions.appendSlice(self.alloc, &bytes);
        try self.operands.appendSlice(self.alloc, values);
        self.count += 1;
    }

    pub fn leaf(self: *Writer, opcode: Opcode, column: u16, values: []const u64) !void {
        try self.put(opcode, column, @intCast(values.len), values);
    }

    pub fn finish(self: *Writer) ![]u8 {
        var out: std.ArrayList(u8) = .empty;
        var names: std.ArrayList(u8) = .empty;
        defer names.deinit(self.alloc);
        try out.appendNTimes(self.alloc, 0, program.header_size);
        for (self.columns) |column| {
            var entry: [8]u8 = undefined;
            std.mem.writeInt(u32, entry[0..4], @intCast(names.items.len), .little);
            std.mem.writeInt(u16, entry[4..6], @intCast(column.name.len), .little);
            std.mem.writeInt(u16, entry[6..8], @intCast(@intFromEnum(column.type)), .little);
            try out.appendSlice(self.alloc, &entry);
            try names.appendSlice(self.alloc, column.name);
        }
        try names.appendNTimes(self.alloc, 0, (8 - names.items.len % 8) % 8);
        try out.appendSlice(self.alloc, names.items);
        try out.appendSlice(self.alloc, self.instructions.items);
        for (self.operands.items) |word| try out.appendSlice(self.alloc, std.mem.asBytes(&std.mem.nativeToLittle(u64, word)));
        const header = out.items[0..program.header_size];
        @memcpy(header[0..4], program.magic);
        std.mem.writeInt(u16, header[4..6], program.version, .little);
        std.mem.writeInt(u16, header[6..8], @intCast(self.columns.len), .little);
        std.mem.writeInt(u32, header[8..12], self.count, .little);
        std.mem.writeInt(u32, header[12..16], @intCast(names.items.len), .little);
        std.mem.writeInt(u64, header[16..24], self.operands.items.len, .little);
        std.mem.writeInt(u64, header[24..32], out.items.len, .little);
        return out.toOwnedSlice(self.alloc);
    }
};
