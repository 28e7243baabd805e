//! Postings over a table large enough that lists, bits, orders and draws all happen; and over damaged files.
const std = @import("std");
const testing = std.testing;
const base = @import("base");
const column_room = @import("column.zig");
const Column = column_room.Column;
const Columns = column_room.Columns;
const Diagnostic = @import("column.zig").Diagnostic;
const Filter = @import("predicate.zig").Filter;
const Writer = @import("random_table_test.zig").Writer;
const write_postings = @import("postings_writer.zig").write;

/// No multiple of 64: the last word of bits has some that are no rows.
const n = 40_019;

/// `few` has 13 values, 12 of them frequent enough to be bits, `unique` has n; `price` has floats and NaN, `tags` lists of
/// tokens, most of them small, `wide` lists of int64.
const Table = struct {
    arena: std.heap.ArenaAllocator,
    columns: Columns,
    list: [5]Column,
    dir: testing.TmpDir,
    path: []u8,

    fn init_with_postings(self: *Table) !void {
        try self.init();
        errdefer self.deinit();
        var diagnostic = Diagnostic{};
        try self.columns.load_postings(self.path, 3, &diagnostic);
    }

    fn init(self: *Table) !void {
        self.* = .{ .arena = .init(testing.allocator), .columns = try .init(testing.allocator, n), .list = undefined, .dir = testing.tmpDir(.{}), .path = undefined };
        const arena = self.arena.allocator();
        var prng = base.Prng.init(77);
        const few = try arena.alloc(u8, n);
        const unique = try arena.alloc(i64, n);
        const price = try arena.alloc(f32, n);
        const validity = try arena.alloc(u8, (n + 7) / 8);
        for (few, 0..) |*value, i| value.* = if (i < 30) 200 else @intCast(prng.below(12));
        for (unique, 0..) |*value, i| value.* = @as(i64, @intCast((i * 7919) % n)) - 5000;
        for (price) |*value| value.* = if (prng.below(50) == 0) std.math.nan(f32) else @as(f32, @floatFromInt(prng.below(1 << 20))) / 64 - 100;
        for (validity) |*byte| byte.* = @truncate(prng.next() | prng.next() | prng.next());
        const offsets = try arena.alloc(i32, n + 1);
        const tags = try arena.alloc(i32, 5 * n);
        const wide = try arena.alloc(i64, 5 * n);
        var at: usize = 0;
        for (offsets[0..n]) |*offset| {
            offset.* = @intCast(at);
            for (0..prng.below(6)) |_| {
                const token: i32 = @intCast(prng.below(1 + prng.below(500)));
                tags[at] = token;
                wide[at] = @as(i64, token) * -1_000_000_007;
                at += 1;
            }
        }
        offsets[n] = @intCast(at);
        const null_some = validity.ptr;
        self.list = .{
            .{ .name = "few", .type = .u8, .row_count = n, .validity = null, .values = few.ptr, .values_count = n },
            .{ .name = "unique", .type = .i64, .row_count = n, .validity = null, .values = @ptrCast(unique.ptr), .values_count = n },
            .{ .name = "price", .type = .f32, .row_count = n, .validity = null_some, .values = @ptrCast(price.ptr), .values_count = n },
            .{ .name = "tags", .type = .list_code32, .row_count = n, .validity = null_some, .values = @ptrCast(tags.ptr), .values_count = at, .offsets = offsets.ptr },
            .{ .name = "wide", .type = .list_i64, .row_count = n, .validity = null, .values = @ptrCast(wide.ptr), .values_count = at, .offsets = offsets.ptr },
        };
        var diagnostic = Diagnostic{};
        for (self.list) |column| try self.columns.add(column, &diagnostic);
        const folder = try self.dir.dir.realpathAlloc(arena, ".");
        self.path = try std.fs.path.join(arena, &.{ folder, "columns.postings" });
        try write_postings(testing.allocator, self.path, &self.columns, 3);
    }

    fn deinit(self: *Table) void {
        self.columns.deinit();
        self.arena.deinit();
        self.dir.cleanup();
    }

    fn compile(self: *Table, program: *Writer) !*Filter {
        defer program.deinit();
        const bytes = try program.finish();
        defer testing.allocator.free(bytes);
        var diagnostic = Diagnostic{};
        return Filter.compile(testing.allocator, &self.columns, bytes, &diagnostic);
    }

    fn writer(self: *const Table) Writer {
        return .{ .alloc = testing.allocator, .columns = &self.list };
    }
};

fn truth(filter: *const Filter) u64 {
    var passed: u64 = 0;
    for (0..n) |row| passed += @intFromBool(filter.passes(@intCast(row)));
    return passed;
}

fn check_resolved(filter: *Filter) !void {
    const expected = try testing.allocator.alloc(bool, n);
    defer testing.allocator.free(expected);
    for (expected, 0..) |*one, row| one.* = filter.passes(@intCast(row));
    var it = try filter.matches();
    var passed: u64 = 0;
    for (expected) |one| passed += @intFromBool(one);
    try testing.expectEqual(passed, it.count());
    for (expected, 0..) |one, row| if (one) try testing.expectEqual(@as(u32, @intCast(row)), it.next().?);
    try testing.expectEqual(null, it.next());
    const set = try filter.resolve();
    for (expected, 0..) |one, row| try testing.expectEqual(one, set.contains(row));
}

fn f64_word(value: f64) u64 {
    return @bitCast(value);
}

fn i64_word(value: i64) u64 {
    return @bitCast(value);
}

test "single conditions are counted exactly and resolve to their rows" {
    var table: Table = undefined;
    try table.init_with_postings();
    defer table.deinit();
    const Opcode = @import("program.zig").Opcode;
    const cases = [_]struct { Opcode, u16, []const u64 }{
        .{ .range, 0, &.{ 3, 3 } },
        .{ .range, 0, &.{ 3, 12 } },
        .{ .in_set, 0, &.{ 1, 5, 200 } },
        .{ .range, 0, &.{ 200, 200 } },
        .{ .range, 0, &.{ 21, 199 } },
        .{ .range, 1, &.{ i64_word(-5000), i64_word(-4980) } },
        .{ .range, 1, &.{ i64_word(-100), i64_word(30000) } },
        .{ .in_set, 1, &.{ i64_word(-20000), i64_word(-3), i64_word(0), i64_word(17) } },
        .{ .range, 2, &.{ f64_word(-50), f64_word(0) } },
        .{ .range, 2, &.{ f64_word(-std.math.inf(f64)), f64_word(std.math.inf(f64)) } },
        .{ .is_null, 2, &.{} },
        .{ .contains_any, 3, &.{7} },
        .{ .contains_all, 3, &.{0} },
        .{ .contains_any, 3, &.{499} },
        .{ .contains_all, 3, &.{} },
        .{ .contains_all, 3, &.{ 0, 1 } },
        .{ .contains_all, 3, &.{ 0, 1, 2, 40 } },
        .{ .contains_all, 3, &.{ 1, 300, 301 } },
        .{ .contains_all, 3, &.{ 12, 700 } },
        .{ .contains_any, 4, &.{i64_word(-9 * 1_000_000_007)} },
    };
    for (cases) |case| for ([_]bool{ false, true }) |negated| {
        var writer = table.writer();
        try writer.leaf(case[0], case[1], case[2]);
        if (negated) try writer.put(.not, 0, 0, &.{});
        const filter = try table.compile(&writer);
        defer filter.deinit();
        errdefer std.debug.print("{t} of {s}, negated {}\n", .{ case[0], table.list[case[1]].name, negated });
        if (case[0] != .contains_all or case[2].len == 1) {
            try testing.expect(filter.is_exact());
            try testing.expectEqual(truth(filter), filter.count(null));
        }
        try check_resolved(filter);
    };
}

test "conjunctions and disjunctions are estimated near the truth, however rare, and resolve" {
    var table: Table = undefined;
    try table.init_with_postings();
    defer table.deinit();
    var prng = base.Prng.init(5);
    var sharp: usize = 0;
    for (0..120) |round| {
        var writer = table.writer();
        const a = prng.below(300);
        const b = a + 1 + prng.below(100);
        try writer.leaf(if (prng.boolean()) .contains_all else .contains_any, 3, &.{ a, b });
        const from = i64_word(@as(i64, @intCast(prng.below(n))) - 5000);
        try writer.leaf(.range, 1, &.{ from, i64_word(@as(i64, @bitCast(from)) + @as(i64, @intCast(prng.below(20_000)))) });
        const value = prng.below(20);
        try writer.leaf(.range, 0, &.{ value, value });
        if (prng.below(3) == 0) try writer.put(.not, 0, 0, &.{});
        try writer.put(if (prng.boolean()) .all else .any, 0, 2, &.{});
        try writer.put(if (prng.boolean()) .all else .any, 0, 2, &.{});
        const filter = try table.compile(&writer);
        defer filter.deinit();
        errdefer std.debug.print("round {d}\n", .{round});
        const passed: f64 = @floatFromInt(truth(filter));
        const estimated = filter.estimate() * n;
        if (filter.is_exact()) try testing.expectApproxEqAbs(passed, estimated, 1e-6);
        // Between a sample of 256 of the rarest condition and one of 1,024 of all rows: an error of a twentieth of n at most.
        try testing.expectApproxEqAbs(passed, estimated, 0.05 * n);
        sharp += @intFromBool(@abs(passed - estimated) <= @max(40, 0.3 * passed));
        try check_resolved(filter);
    }
    try testing.expect(sharp >= 110);
}

test "what a column has, or null, is counted exactly" {
    var table: Table = undefined;
    try table.init_with_postings();
    defer table.deinit();
    for ([_]bool{ false, true }) |negated| {
        var writer = table.writer();
        try writer.leaf(.range, 2, &.{ f64_word(-50), f64_word(3000) });
        if (negated) try writer.put(.not, 0, 0, &.{});
        try writer.leaf(.is_null, 2, &.{});
        try writer.put(.any, 0, 2, &.{});
        const filter = try table.compile(&writer);
        defer filter.deinit();
        try testing.expect(filter.is_exact());
        try testing.expectEqual(truth(filter), filter.count(null));
        try check_resolved(filter);
    }
}

test "a rare conjunction of two tokens is counted where a sample of all rows meets none" {
    var table: Table = undefined;
    try table.init_with_postings();
    defer table.deinit();
    for (0..20) |i| {
        var writer = table.writer();
        try writer.leaf(.contains_all, 3, &.{ 400 + i, 450 + i });
        const filter = try table.compile(&writer);
        defer filter.deinit();
        try testing.expect(filter.is_exact());
        try testing.expectEqual(truth(filter), filter.count(null));
        var it = try filter.matches();
        while (it.next()) |row| try testing.expect(filter.passes(row));
        try testing.expect(!filter.is_resolved()); // a list, no bits
        try testing.expect(filter.memory_bytes() < n / 8);
    }
}

test "signatures come from the file" {
    var table: Table = undefined;
    try table.init_with_postings();
    defer table.deinit();
    var writer = table.writer();
    try writer.leaf(.contains_all, 3, &.{ 1, 2 });
    const filter = try table.compile(&writer);
    defer filter.deinit();
    try testing.expectEqual(0, table.columns.memory().resident_bytes);
    try testing.expect(table.columns.memory().mapped_bytes > 8 * n);
    try check_resolved(filter);
}

test "a damaged or shortened file is an error that names it, never a crash" {
    var table: Table = undefined;
    try table.init();
    defer table.deinit();
    const whole = try table.dir.dir.readFileAlloc(testing.allocator, "columns.postings", 1 << 26);
    defer testing.allocator.free(whole);
    const copy = try testing.allocator.dupe(u8, whole);
    defer testing.allocator.free(copy);
    var prng = base.Prng.init(9);
    var noticed: usize = 0;
    for (0..150) |round| {
        @memcpy(copy, whole);
        var len = copy.len;
        if (round % 3 == 0) {
            len = @intCast(prng.below(copy.len));
        } else {
            const end = if (round % 3 == 1) 600 else copy.len; // the directory, or anywhere
            copy[@intCast(prng.below(end))] ^= @as(u8, 1) << @intCast(prng.below(8));
        }
        try table.dir.dir.writeFile(.{ .sub_path = "columns.postings", .data = copy[0..len] });
        noticed += @intFromBool(try is_refused(&table));
    }
    try testing.expect(noticed >= 145); // what is not noticed lies between two parts
    try table.dir.dir.writeFile(.{ .sub_path = "columns.postings", .data = whole });
    try testing.expect(!try is_refused(&table));
}

test "bits of rows that are none are damage" {
    var table: Table = undefined;
    try table.init();
    defer table.deinit();
    const bytes = try table.dir.dir.readFileAllocOptions(testing.allocator, "columns.postings", 1 << 26, null, .@"8", null);
    defer testing.allocator.free(bytes);
    const header: *column_room.Header = @ptrCast(bytes.ptr);
    const entries: []column_room.Entry = std.mem.bytesAsSlice(column_room.Entry, bytes[@sizeOf(column_room.Header)..][0 .. header.column_count * @sizeOf(column_room.Entry)]);
    for (entries) |*entry| {
        if (!std.mem.eql(u8, bytes[entry.name_offset..][0..entry.name_size], "few")) continue;
        const part: []align(8) u8 = @alignCast(bytes[@intCast(entry.offset)..][0..@intCast(entry.size)]);
        const d: usize = @intCast(entry.distinct);
        const words = std.mem.bytesAsSlice(u64, part);
        const offsets = words[d + (d + 2) / 2 ..][0 .. d + 1];
        const last = &words[d + (d + 2) / 2 + d + 1 + @as(usize, @intCast(offsets[1])) - 1];
        last.* |= @as(u64, 1) << 63;
        entry.checksum = base.checksum(part);
    }
    header.checksum = base.checksum(bytes[16..@intCast(header.directory_size)]);
    try table.dir.dir.writeFile(.{ .sub_path = "columns.postings", .data = bytes });
    try testing.expect(try is_refused(&table));
}

/// At open, or by a filter over each column.
fn is_refused(table: *Table) !bool {
    var columns = try Columns.init(testing.allocator, n);
    defer columns.deinit();
    var diagnostic = Diagnostic{};
    for (table.list) |column| try columns.add(column, &diagnostic);
    columns.load_postings(table.path, 3, &diagnostic) catch |err| {
        try testing.expect(err == error.Corrupt or err == error.NewerVersion);
        try testing.expect(std.mem.indexOf(u8, diagnostic.message(), "columns.postings") != null);
        return true;
    };
    for (table.list, 0..) |column, i| {
        var writer = table.writer();
        defer writer.deinit();
        if (column.type.is_list()) try writer.leaf(.contains_any, @intCast(i), &.{1}) else try writer.leaf(.is_null, @intCast(i), &.{});
        const bytes = try writer.finish();
        defer testing.allocator.free(bytes);
        const filter = Filter.compile(testing.allocator, &columns, bytes, &diagnostic) catch |err| {
            try testing.expectEqual(error.Corrupt, err);
            try testing.expect(std.mem.indexOf(u8, diagnostic.message(), "columns.postings") != null);
            return true;
        };
        defer filter.deinit();
        _ = try filter.resolve();
    }
    return false;
}

test "threads resolve one filter over mapped postings at once" {
    var table: Table = undefined;
    try table.init_with_postings();
    defer table.deinit();
    var writer = table.writer();
    try writer.leaf(.contains_any, 3, &.{ 300, 301 });
    const filter = try table.compile(&writer);
    defer filter.deinit();
    const expected = truth(filter);
    const run = struct {
        fn run(f: *Filter, wanted: u64, wrong: *std.atomic.Value(u32)) void {
            var it = f.matches() catch return;
            var found: u64 = 0;
            while (it.next()) |_| found += 1;
            const set = f.resolve() catch return;
            if (found != wanted or set.count() != wanted) _ = wrong.fetchAdd(1, .monotonic);
        }
    }.run;
    var wrong = std.atomic.Value(u32).init(0);
    var threads: [4]std.Thread = undefined;
    for (&threads) |*thread| thread.* = try std.Thread.spawn(.{}, run, .{ filter, expected, &wrong });
    for (threads) |thread| thread.join();
    try testing.expectEqual(0, wrong.load(.monotonic));
}
