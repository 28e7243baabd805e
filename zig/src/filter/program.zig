//! A predicate program as bytes, and its tree. Little-endian; positions below are in bytes.
//!
//!   OFFSET  SIZE
//!   0       4     magic "VFLT"
//!   4       2     version, 1
//!   6       2     column_count
//!   8       4     instruction_count, 1..4096
//!   12      4     names_size, a multiple of 8
//!   16      8     operand_count, in words of 8 bytes
//!   24      8     program_size
//!   32            column_count entries of 8 bytes: name offset u32, name size u16, velo_column_type u16
//!           names_size bytes of names, UTF-8
//!           instruction_count instructions of 16 bytes: opcode u8, zero u8, column u16, count u32, first operand u64
//!           operand_count words: i64, u64 or f64, by the column's type
//!
//! Instructions are in postfix order: a leaf pushes one truth, `all` and `any` pop `count` and push one, `not` pops one
//! and pushes one. One is left at the end.
const std = @import("std");
const column_room = @import("column.zig");
const Diagnostic = @import("column.zig").Diagnostic;
const ColumnType = column_room.ColumnType;
const Column = column_room.Column;
const Columns = column_room.Columns;
const ValueType = column_room.ValueType;

pub const magic = "VFLT";
pub const version = 1;
pub const header_size = 32;
const column_size = 8;
const instruction_size = 16;
pub const instructions_max = 4096;
const operands_max = 1 << 22;
pub const depth_max = 64;
/// A row must hold every one of these, so longer lists than any row's are no use; bounds the work a row.
const contains_all_max = 1024;

pub const Opcode = enum(u8) {
    /// Two operands: low <= value <= high.
    range = 1,
    /// Any number of operands, strictly ascending: value is one of them.
    in_set = 2,
    is_null = 3,
    /// Lists; operands strictly ascending.
    contains_any = 4,
    contains_all = 5,
    always = 6,
    never = 7,
    all = 8,
    any = 9,
    not = 10,
};

pub const ParseError = error{ BadProgram, UnknownColumn, WrongType, TooDeep, OutOfMemory };

pub const Leaf = struct {
    opcode: Opcode,
    column: *const Column,
    /// Raw words; `Operands.get` reads them in the column's type.
    operands: Operands,
};

pub const Operands = struct {
    bytes: []const u8,

    pub fn len(self: Operands) usize {
        return self.bytes.len / 8;
    }

    pub fn word(self: Operands, i: usize) u64 {
        return std.mem.readInt(u64, self.bytes[8 * i ..][0..8], .little);
    }

    /// The i-th operand in the type of the column's values, or null where it does not fit.
    pub fn get(self: Operands, comptime T: type, i: usize) ?T {
        const raw = self.word(i);
        return switch (T) {
            f32 => blk: {
                const wide: f64 = @bitCast(raw);
                const narrow: f32 = @floatCast(wide);
                break :blk if (@as(f64, narrow) == wide) narrow else null; // NaN is unequal to itself
            },
            f64 => blk: {
                const value: f64 = @bitCast(raw);
                break :blk if (value == value) value else null;
            },
            else => if (@typeInfo(T).int.signedness == .signed)
                std.math.cast(T, @as(i64, @bitCast(raw)))
            else
                std.math.cast(T, raw),
        };
    }
};

/// Nodes stand behind their children in `Tree.nodes`; the last one is the root.
pub const Node = union(enum) {
    constant: bool,
    leaf: Leaf,
    not: u32,
    all: []u32,
    any: []u32,
};

const Tree = struct { nodes: []Node };

const Header = struct {
    column_count: usize,
    instruction_count: usize,
    names_at: usize,
    names_size: usize,
    instructions_at: usize,
    operands_at: usize,
    operand_count: usize,
};

fn bad(diagnostic: *Diagnostic, comptime format: []const u8, args: anytype) ParseError {
    diagnostic.say("filter program: " ++ format, args);
    return error.BadProgram;
}

fn parse_header(bytes: []const u8, diagnostic: *Diagnostic) ParseError!Header {
    if (bytes.len < header_size) return bad(diagnostic, "{d} bytes are less than a header", .{bytes.len});
    if (!std.mem.eql(u8, bytes[0..4], magic)) return bad(diagnostic, "it does not begin with {s}", .{magic});
    const found = std.mem.readInt(u16, bytes[4..6], .little);
    if (found != version) return bad(diagnostic, "version {d} is unknown", .{found});
    const column_count: usize = std.mem.readInt(u16, bytes[6..8], .little);
    const instruction_count: usize = std.mem.readInt(u32, bytes[8..12], .little);
    const names_size: usize = std.mem.readInt(u32, bytes[12..16], .little);
    const operand_count = std.mem.readInt(u64, bytes[16..24], .little);
    const program_size = std.mem.readInt(u64, bytes[24..32], .little);
    if (instruction_count == 0 or instruction_count > instructions_max)
        return bad(diagnostic, "{d} instructions, 1 to {d} are possible", .{ instruction_count, instructions_max });
    if (operand_count > operands_max) return bad(diagnostic, "{d} operands, at most {d} are possible", .{ operand_count, operands_max });
    if (names_size % 8 != 0) return bad(diagnostic, "names of {d} bytes are not padded", .{names_size});
    const names_at = header_size + column_count * column_size;
    const instructions_at = names_at + names_size;
    const operands_at = instructions_at + instruction_count * instruction_size;
    const expected = operands_at + 8 * operand_count;
    if (program_size != expected or bytes.len != expected)
        return bad(diagnostic, "it has {d} bytes, its header says {d}, its parts take {d}", .{ bytes.len, program_size, expected });
    return .{
        .column_count = column_count,
        .instruction_count = instruction_count,
        .names_at = names_at,
        .names_size = names_size,
        .instructions_at = instructions_at,
        .operands_at = operands_at,
        .operand_count = @intCast(operand_count),
    };
}

/// Reads and checks everything; what comes out refers to `bytes` and to `columns`.
pub fn parse(arena: std.mem.Allocator, columns: *const Columns, bytes: []const u8, diagnostic: *Diagnostic) ParseError!Tree {
    const header = try parse_header(bytes, diagnostic);
    const used = try arena.alloc(*const Column, header.column_count);
    for (used, 0..) |*column, i| column.* = try parse_column(columns, bytes, &header, i, diagnostic);

    const nodes = try arena.alloc(Node, header.instruction_count);
    const depths = try arena.alloc(u8, header.instruction_count);
    const stack = try arena.alloc(u32, header.instruction_count);
    var height: usize = 0;
    for (nodes, depths, 0..) |*node, *depth, i| {
        const at = bytes[header.instructions_at + i * instruction_size ..][0..instruction_size];
        const opcode = std.enums.fromInt(Opcode, at[0]) orelse
            return bad(diagnostic, "instruction {d} has the unknown opcode {d}", .{ i, at[0] });
        if (at[1] != 0) return bad(diagnostic, "instruction {d} has an unknown flag", .{i});
        const count: usize = std.mem.readInt(u32, at[4..8], .little);
        const popped: usize = switch (opcode) {
            .all, .any => count,
            .not => 1,
            else => 0,
        };
        if (popped > height or (popped == 0 and (opcode == .all or opcode == .any)))
            return bad(diagnostic, "instruction {d} takes {d} truths of {d}", .{ i, popped, height });
        const children = stack[height - popped .. height];
        depth.* = 1;
        for (children) |child| depth.* = @max(depth.*, depths[child] + 1);
        if (depth.* > depth_max) {
            diagnostic.say("filter program: it is nested deeper than {d}", .{depth_max});
            return error.TooDeep;
        }
        node.* = switch (opcode) {
            .always => .{ .constant = true },
            .never => .{ .constant = false },
            .all => .{ .all = try arena.dupe(u32, children) },
            .any => .{ .any = try arena.dupe(u32, children) },
            .not => .{ .not = children[0] },
            .range, .in_set, .is_null, .contains_any, .contains_all => .{ .leaf = try parse_leaf(opcode, at, used, bytes, &header, i, diagnostic) },
        };
        height -= popped;
        stack[height] = @intCast(i);
        height += 1;
    }
    if (height != 1) return bad(diagnostic, "{d} truths are left at its end, not one", .{height});
    return .{ .nodes = nodes };
}

fn parse_column(columns: *const Columns, bytes: []const u8, header: *const Header, i: usize, diagnostic: *Diagnostic) ParseError!*const Column {
    const entry = bytes[header_size + i * column_size ..][0..column_size];
    const name_at: usize = std.mem.readInt(u32, entry[0..4], .little);
    const name_size: usize = std.mem.readInt(u16, entry[4..6], .little);
    const declared: usize = std.mem.readInt(u16, entry[6..8], .little);
    if (name_at + name_size > header.names_size) return bad(diagnostic, "the name of column {d} lies outside", .{i});
    const name = bytes[header.names_at + name_at ..][0..name_size];
    const column = columns.get(name) orelse {
        diagnostic.say("there is no column {s} to filter on", .{name});
        return error.UnknownColumn;
    };
    if (declared != @intFromEnum(column.type)) {
        diagnostic.say("column {s} is of type {t}, the filter program expects type {d}", .{ name, column.type, declared });
        return error.WrongType;
    }
    return column;
}

fn parse_leaf(
    opcode: Opcode,
    at: *const [instruction_size]u8,
    used: []const *const Column,
    bytes: []const u8,
    header: *const Header,
    i: usize,
    diagnostic: *Diagnostic,
) ParseError!Leaf {
    const column_index = std.mem.readInt(u16, at[2..4], .little);
    const count: usize = std.mem.readInt(u32, at[4..8], .little);
    const first = std.mem.readInt(u64, at[8..16], .little);
    if (column_index >= used.len) return bad(diagnostic, "instruction {d} uses column {d} of {d}", .{ i, column_index, used.len });
    if (first > header.operand_count or count > header.operand_count - first)
        return bad(diagnostic, "the operands of instruction {d} lie outside", .{i});
    const column = used[column_index];
    const wants_list = opcode == .contains_any or opcode == .contains_all;
    if (opcode != .is_null and column.type.is_list() != wants_list) {
        diagnostic.say("filter program: {t} does not apply to column {s} of type {t}", .{ opcode, column.name, column.type });
        return error.WrongType;
    }
    switch (opcode) {
        .range => if (count != 2) return bad(diagnostic, "the range of instruction {d} has {d} operands", .{ i, count }),
        .is_null => if (count != 0) return bad(diagnostic, "is_null of instruction {d} has operands", .{i}),
        .contains_all => if (count > contains_all_max)
            return bad(diagnostic, "contains_all of instruction {d} has {d} values, at most {d} are possible", .{ i, count, contains_all_max }),
        else => {},
    }
    const operands = Operands{ .bytes = bytes[header.operands_at + 8 * @as(usize, @intCast(first)) ..][0 .. 8 * count] };
    const in_order = switch (column.type) {
        .bool => in_range_and_order(u1, opcode, operands),
        .list_code32, .code32 => in_range_and_order(u31, opcode, operands), // a null element of a list is code -1
        .list_i64 => in_range_and_order(i64, opcode, operands),
        inline else => |t| in_range_and_order(ValueType(t), opcode, operands),
    };
    if (!in_order) return bad(diagnostic, "the operands of instruction {d} do not ascend, or do not fit column {s}", .{ i, column.name });
    return .{ .opcode = opcode, .column = column, .operands = operands };
}

fn in_range_and_order(comptime T: type, opcode: Opcode, operands: Operands) bool {
    var before: ?T = null;
    for (0..operands.len()) |i| {
        const value = operands.get(T, i) orelse return false;
        if (before) |b| if (if (opcode == .range) b > value else b >= value) return false;
        before = value;
    }
    return true;
}
