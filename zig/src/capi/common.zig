//! Helpers of this room: allocation, arguments, the way from an error to a status.
const std = @import("std");
const base = @import("base");
const index = @import("index");
const errors = @import("errors.zig");

pub const allocator = base.allocator;
pub const fail = errors.fail;
pub const Status = errors.Status;
pub const ok = @intFromEnum(Status.ok);

/// The failure of a call that unwinds by `errdefer`: with a status and a sentence that this thread remembers (errors.zig), or for
/// lack of memory. `status_of_call` makes a status of it.
pub const Failure = error{ Reported, OutOfMemory };

pub fn report(status: Status, detail: errors.Detail, comptime format: []const u8, args: anytype) error{Reported} {
    _ = fail(status, detail, format, args);
    return error.Reported;
}

pub fn report_index(err: index.Error, diagnostic: *const index.Diagnostic) error{Reported} {
    _ = fail_index(err, diagnostic);
    return error.Reported;
}

pub fn status_of_call(outcome: Failure!void) i32 {
    outcome catch |err| return switch (err) {
        error.Reported => errors.last_status(),
        error.OutOfMemory => out_of_memory(),
    };
    return ok;
}

/// The argument, unless it is NULL.
pub fn need(comptime name: []const u8, argument: anytype) error{Reported}!@typeInfo(@TypeOf(argument)).optional.child {
    return argument orelse report(.invalid_argument, .{ .argument = name }, name ++ " is NULL", .{});
}

/// The struct behind an argument as this version of the library knows it.
pub fn read(comptime T: type, comptime name: []const u8, argument: ?*const T) error{Reported}!T {
    const theirs = try need(name, argument);
    return versioned(T, theirs) orelse {
        _ = size_error(name, theirs.struct_size);
        return error.Reported;
    };
}

/// The argument of a close: the handle, which its owner no longer has from here on.
pub fn take(comptime T: type, place: ?*?*T) ?*T {
    return @atomicRmw(?*T, place orelse return null, .Xchg, null, .acq_rel);
}

pub fn null_argument(comptime name: []const u8) i32 {
    return fail(.invalid_argument, .{ .argument = name }, name ++ " is NULL", .{});
}

/// Each of these fields lies within its range in `base.limits.ranges`, or is zero, which stands for "the default".
pub fn within(o: anytype, comptime names: anytype) error{Reported}!void {
    inline for (names) |name| {
        const limit = @field(base.limits.ranges, name);
        const value = @field(o, name);
        if (value != 0 and !limit.holds(value))
            return report(.invalid_argument, .{ .argument = name }, name ++ " is {d}; it must lie within {d} and {d}", .{ value, limit.min, limit.max });
    }
}

pub fn out_of_memory() i32 {
    return fail(.out_of_memory, .{}, "the operating system gave no memory", .{});
}

/// A struct as the caller's header knows it: fields beyond its size are the defaults of `T` (all zero).
pub fn versioned(comptime T: type, given: *const T) ?T {
    var own: T = std.mem.zeroes(T);
    const size = @min(given.struct_size, @sizeOf(T));
    if (size < 8) return null;
    @memcpy(std.mem.asBytes(&own)[0..size], @as([*]const u8, @ptrCast(given))[0..size]);
    return own;
}

/// Writes back only what the caller's header knows.
pub fn write_versioned(comptime T: type, out: *T, value: *const T) void {
    const given = out.struct_size;
    const size = @min(given, @sizeOf(T));
    @memcpy(@as([*]u8, @ptrCast(out))[0..size], std.mem.asBytes(value)[0..size]);
    out.struct_size = given;
}

pub fn size_error(comptime name: []const u8, size: u32) i32 {
    return fail(.invalid_argument, .{ .argument = name }, "struct_size {d} of {s} is too small", .{ size, name });
}

pub fn status_of(err: index.Error) Status {
    return switch (err) {
        error.InvalidArgument => .invalid_argument,
        error.NotFinite => .not_finite,
        error.Empty => .empty,
        error.NotAnIndex => .not_an_index,
        error.Corrupt => .corrupt,
        error.UnsupportedVersion => .unsupported_version,
        error.Io => .io,
        error.NoSpace => .no_space,
        error.Permission => .permission,
        error.OutOfMemory => .out_of_memory,
        error.BudgetTooSmall => .budget_too_small,
        error.Canceled => .canceled,
        error.Exists => .exists,
        error.Unsupported => .unsupported,
        error.Internal => .internal,
    };
}

pub fn fail_index(err: index.Error, diagnostic: *const index.Diagnostic) i32 {
    const status = status_of(err);
    const message = diagnostic.message();
    return fail(status, .{
        .argument = diagnostic.argument,
        .file = diagnostic.file(),
        .page = diagnostic.page,
        .row = diagnostic.row,
        .needed_bytes = diagnostic.needed_bytes,
    }, "{s}", .{if (message.len > 0) message else switch (status) {
        .out_of_memory => "the operating system gave no memory",
        .canceled => "the build was canceled",
        else => @errorName(err),
    }});
}

/// Workers for `threads` as asked: 0 is every processor this process may run on.
pub fn thread_count(asked: u32) u32 {
    if (asked > 0) return asked;
    return @intCast(std.Thread.getCpuCount() catch 1);
}

pub fn process() i32 {
    return std.os.linux.getpid();
}

/// A mutex of each process: in a child of fork that of the parent may be locked for good.
pub const ProcessLock = struct {
    /// The process that the mutex is for; negative while that process renews it.
    process: std.atomic.Value(i32) = .init(0),
    mutex: std.Thread.Mutex = .{},
    /// The process that locked it last.
    last: i32 = 0,

    /// True the first time in a process: all that the mutex guards is the parent's then.
    pub fn lock(self: *ProcessLock) bool {
        const own = process();
        while (true) {
            const seen = self.process.load(.acquire);
            if (seen == own) break;
            if (seen == -own or self.process.cmpxchgWeak(seen, -own, .acq_rel, .monotonic) != null) {
                std.atomic.spinLoopHint();
                continue;
            }
            self.mutex = .{};
            self.process.store(own, .release);
        }
        self.mutex.lock();
        defer self.last = own;
        return self.last != own;
    }

    pub fn unlock(self: *ProcessLock) void {
        self.mutex.unlock();
    }
};

pub fn forked() i32 {
    return fail(.forked, .{}, "this handle was opened in another process; open the index again after a fork", .{});
}

/// Copies text into a fixed field, NUL-terminated.
pub fn put_text(field: []u8, text: []const u8) void {
    const len = @min(field.len - 1, text.len);
    @memcpy(field[0..len], text[0..len]);
    @memset(field[len..], 0);
}

/// As a struct of velo.h was once, and as it is now.
const Older = extern struct { struct_size: u32, k: u32 };
const Newer = extern struct { struct_size: u32, k: u32, recall: f32, burst: u32 };

// ---- numbers of the header ----
//
// Numbers of velo.h for values that other rooms name.

/// As velo_plan.
pub const Plan = enum(i32) { auto = 0, links_in_memory = 1, links_on_disk = 2, walk = 3 };
/// As velo_io.
pub const Io = enum(i32) { auto = 0, uring = 1, threads = 2, simulated = 3 };
/// As velo_search_options.filter_plan.
pub const FilterPlan = enum(i32) { auto = 0, late = 1, gate = 3, scan = 4 };

/// The number of a value, found by its name.
pub fn number_of(comptime Numbers: type, value: anytype) @typeInfo(Numbers).@"enum".tag_type {
    return switch (value) {
        inline else => |one| @intFromEnum(@field(Numbers, @tagName(one))),
    };
}

/// The value of type `T` that has the name of this number.
pub fn value_of(comptime T: type, comptime Numbers: type, comptime argument: []const u8, number: @typeInfo(Numbers).@"enum".tag_type) error{Reported}!T {
    const known = std.enums.fromInt(Numbers, number) orelse
        return report(.invalid_argument, .{ .argument = argument }, argument ++ " {d} is unknown", .{number});
    if (T == Numbers) return known;
    return switch (known) {
        inline else => |one| @field(T, @tagName(one)),
    };
}

test "a struct that is too short to say anything is refused" {
    var given: Newer = .{ .struct_size = 0, .k = 5, .recall = 0.5, .burst = 9 };
    for ([_]u32{ 0, 4, 7 }) |size| {
        given.struct_size = size;
        try std.testing.expectEqual(null, versioned(Newer, &given));
    }
    given.struct_size = @sizeOf(Older);
    try std.testing.expect(versioned(Newer, &given) != null);
}

test "of an older, shorter struct only its own fields are read, whatever lies behind it" {
    const Given = extern struct { older: Older, behind: [64]u8 };
    const given: Given = .{ .older = .{ .struct_size = @sizeOf(Older), .k = 5 }, .behind = @splat(0xa5) };
    const own = versioned(Newer, @ptrCast(&given)).?;
    try std.testing.expectEqual(Newer{ .struct_size = @sizeOf(Older), .k = 5, .recall = 0, .burst = 0 }, own);
}

test "of a newer, longer struct all that is known is read" {
    const Given = extern struct { own: Newer, behind: [64]u8 };
    const given: Given = .{ .own = .{ .struct_size = @sizeOf(Given), .k = 5, .recall = 0.5, .burst = 9 }, .behind = @splat(0xa5) };
    try std.testing.expectEqual(given.own, versioned(Newer, &given.own).?);
}

test "into an older, shorter struct nothing is written behind its end" {
    const Given = extern struct { older: Older, behind: [8]u8 };
    var given: Given = .{ .older = .{ .struct_size = @sizeOf(Older), .k = 0 }, .behind = @splat(0xa5) };
    write_versioned(Newer, @ptrCast(&given), &.{ .struct_size = @sizeOf(Newer), .k = 5, .recall = 0.5, .burst = 9 });
    try std.testing.expectEqual(Older{ .struct_size = @sizeOf(Older), .k = 5 }, given.older);
    try std.testing.expectEqualSlices(u8, &@as([8]u8, @splat(0xa5)), &given.behind);
}

test "numbers and values find each other by name, and other numbers are errors" {
    const Fruit = enum { pear, apple };
    const Numbers = enum(i32) { apple = 4, pear = 7 };
    for (std.enums.values(Fruit)) |fruit| try std.testing.expectEqual(fruit, value_of(Fruit, Numbers, "fruit", number_of(Numbers, fruit)));
    try std.testing.expectEqual(7, number_of(Numbers, Fruit.pear));
    try std.testing.expectError(error.Reported, value_of(Fruit, Numbers, "fruit", 5));
}
