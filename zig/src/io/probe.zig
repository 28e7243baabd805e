//! Which device an index is read with on this machine, and why: tried for real, not guessed from version numbers.
const std = @import("std");
const contract = @import("device.zig");
const Read = @import("read.zig").Read;
const Uring = @import("uring.zig").Uring;
const posix = std.posix;
const linux = std.os.linux;
const E = linux.E;

pub const page_size = 4096;

pub const Wanted = enum { auto, uring, threads };

/// An open file of pages. The caller closes `fd`.
pub const Pages = struct {
    fd: posix.fd_t,
    /// Reads bypass the page cache.
    direct: bool,
    /// Why not, when direct reads were asked for: 0, or the errno with which they were refused.
    direct_errno: i32,
};

/// Opens for reading, with O_DIRECT when `direct` is asked for and a real read accepts it, else buffered: some file
/// systems refuse O_DIRECT at open, others at the first read, others above a sector size.
pub fn open_pages(path: [:0]const u8, direct: bool) posix.OpenError!Pages {
    const plain: posix.O = .{ .ACCMODE = .RDONLY, .CLOEXEC = true };
    var direct_errno: i32 = 0;
    if (direct) {
        var flags = plain;
        flags.DIRECT = true;
        const opened = linux.open(path, flags, 0);
        switch (linux.E.init(opened)) {
            .SUCCESS => {
                const fd: posix.fd_t = @intCast(opened);
                direct_errno = read_once(fd);
                if (direct_errno == 0) return .{ .fd = fd, .direct = true, .direct_errno = 0 };
                posix.close(fd);
            },
            // Other errors occur without O_DIRECT too, and are reported below.
            else => |e| direct_errno = @intFromEnum(e),
        }
    }
    const fd = try posix.openZ(path, plain, 0);
    return .{ .fd = fd, .direct = false, .direct_errno = direct_errno };
}

fn read_once(fd: posix.fd_t) i32 {
    var page: [page_size]u8 align(page_size) = undefined;
    while (true) {
        const e = linux.E.init(linux.pread(fd, &page, page_size, 0));
        if (e != .INTR) return @intFromEnum(e);
    }
}

/// The content of `velo_device_info`, owned by value.
pub const Report = struct {
    /// The device to use.
    kind: contract.Kind,
    /// Whether reads bypass the page cache.
    direct: bool,
    /// 0: io_uring works here; else the errno with which it was refused.
    uring_errno: i32,
    /// 0: O_DIRECT works there; else the errno with which it was refused.
    direct_errno: i32,
    queue_depth: u32,
    reason: Text = .{},
    advice: Text = .{},

    pub fn name(report: *const Report) [:0]const u8 {
        return @tagName(report.kind);
    }

    /// io_uring was requested by name and is not available: an error for the caller.
    pub fn refused(report: *const Report, wanted: Wanted) bool {
        return wanted == .uring and report.uring_errno != 0;
    }
};

/// One sentence, cut to fit the C struct's 256 bytes with its NUL.
const Text = struct {
    bytes: [255]u8 = undefined,
    len: u8 = 0,

    pub fn slice(text: *const Text) []const u8 {
        return text.bytes[0..text.len];
    }

    fn add(text: *Text, comptime format: []const u8, args: anytype) void {
        var writer: std.Io.Writer = .fixed(text.bytes[text.len..]);
        writer.print(format, args) catch {}; // what fits is kept
        text.len += @intCast(writer.end);
    }
};

/// For the file that will be read; `direct` as for `open_pages`.
fn probe_file(path: [:0]const u8, wanted: Wanted, direct: bool, queue_depth: u32) posix.OpenError!Report {
    const pages = try open_pages(path, direct);
    defer posix.close(pages.fd);
    return choose(pages.fd, pages.direct, pages.direct_errno, direct, wanted, queue_depth);
}

/// For files in a folder, before the first exists: with a scratch file of one page, which is removed afterwards. If the
/// folder cannot be written, with a file in memory; direct reads then count as refused with the errno of the write.
pub fn probe_folder(folder: [:0]const u8, wanted: Wanted, queue_depth: u32) Report {
    var path_buffer: [posix.PATH_MAX]u8 = undefined;
    const path = std.fmt.bufPrintZ(&path_buffer, "{s}/.velo-probe-{d}", .{ folder, linux.getpid() }) catch
        return probe_memory(wanted, queue_depth, @intFromEnum(E.NAMETOOLONG));
    const created = linux.open(path, .{ .ACCMODE = .WRONLY, .CREAT = true, .EXCL = true, .CLOEXEC = true }, 0o600);
    const e = linux.E.init(created);
    if (e != .SUCCESS) return probe_memory(wanted, queue_depth, @intFromEnum(e));
    defer _ = linux.unlink(path);
    const page: [page_size]u8 = @splat(0);
    const written = linux.write(@intCast(created), &page, page.len);
    posix.close(@intCast(created));
    if (written != page.len) {
        const write_error = linux.E.init(written);
        return probe_memory(wanted, queue_depth, if (write_error == .SUCCESS) @intFromEnum(E.NOSPC) else @intFromEnum(write_error));
    }
    return probe_file(path, wanted, true, queue_depth) catch probe_memory(wanted, queue_depth, @intFromEnum(E.ACCES));
}

fn probe_memory(wanted: Wanted, queue_depth: u32, direct_errno: i32) Report {
    const fd: i32 = posix.memfd_create("velo-probe", linux.MFD.CLOEXEC) catch -1;
    defer if (fd >= 0) posix.close(fd);
    if (fd >= 0) posix.ftruncate(fd, page_size) catch {};
    return choose(fd, false, direct_errno, true, wanted, queue_depth);
}

/// The decision for a file that is open: for an engine that has opened its pages itself.
pub fn choose(fd: posix.fd_t, direct: bool, direct_errno: i32, direct_wanted: bool, wanted: Wanted, queue_depth: u32) Report {
    var report: Report = .{
        .kind = .threads,
        .direct = direct,
        .uring_errno = uring_errno_of(fd),
        .direct_errno = direct_errno,
        .queue_depth = queue_depth,
    };
    if (wanted == .threads) {
        report.reason.add("Threads with pread were asked for.", .{});
        if (report.uring_errno == 0) report.advice.add("io_uring works here and is faster: leave io at \"auto\".", .{});
    } else if (report.uring_errno == 0) {
        report.kind = .uring;
        report.reason.add("The kernel allows io_uring, and a read through it succeeded.", .{});
    } else {
        explain_refusal(&report);
    }
    if (!direct) {
        if (direct_wanted) {
            const e: E = @enumFromInt(direct_errno);
            report.reason.add(" Reads go through the page cache: O_DIRECT was refused here ({s}).", .{@tagName(e)});
        } else report.reason.add(" Reads go through the page cache, as asked.", .{});
    }
    return report;
}

/// 0 when a ring can be set up and reads a page of `fd` through it; else the errno of what failed. The environment
/// variable VELO_IO_DENY_URING=1 makes it answer EPERM, as a container would.
pub fn uring_errno_of(fd: posix.fd_t) i32 {
    if (denied_by_environment()) return @intFromEnum(E.PERM);
    var errno: i32 = 0;
    var ring = Uring.open(.{ .file = fd, .queue_depth = 1 }, &errno) catch return errno;
    defer ring.deinit();
    var page: [page_size]u8 align(page_size) = undefined;
    var read: Read = .{ .offset = 0, .buffer = &page, .length = page_size };
    ring.submit(&read);
    var done: [1]*Read = undefined;
    _ = ring.poll(&done, .one);
    return read.errno; // a file shorter than a page is no refusal
}

fn explain_refusal(report: *Report) void {
    const reason = &report.reason;
    const advice = &report.advice;
    const e: E = @enumFromInt(report.uring_errno);
    reason.add("io_uring was refused ({s}", .{@tagName(e)});
    switch (e) {
        .PERM, .ACCES => {
            const disabled = read_number("/proc/sys/kernel/io_uring_disabled") orelse 0;
            if (denied_by_environment()) {
                reason.add(": VELO_IO_DENY_URING is set), so threads with pread are used.", .{});
                advice.add("Unset VELO_IO_DENY_URING.", .{});
            } else if (disabled != 0) {
                reason.add(": kernel.io_uring_disabled is {d}), so threads with pread are used.", .{disabled});
                advice.add("sysctl -w kernel.io_uring_disabled=0, or with =1 add this user to the group kernel.io_uring_group.", .{});
            } else {
                reason.add(", by a seccomp filter: Docker's default profile does this), so threads with pread are used.", .{});
                advice.add("Run the container with a seccomp profile that allows io_uring_setup, io_uring_enter and " ++
                    "io_uring_register (--security-opt seccomp=FILE), or with seccomp=unconfined.", .{});
            }
        },
        .NOSYS => {
            reason.add(": a kernel before 5.1, or a seccomp filter), so threads with pread are used.", .{});
            advice.add("Linux 5.6 or newer has what velo needs (6.1 or newer is faster); in a container see --security-opt seccomp=FILE.", .{});
        },
        .NOMEM => {
            reason.add(": the limit on locked memory is too low), so threads with pread are used.", .{});
            advice.add("Raise RLIMIT_MEMLOCK to 8 MiB or more: ulimit -l 8192, or docker run --ulimit memlock=8388608.", .{});
        },
        .INVAL, .OPNOTSUPP => {
            reason.add(": this kernel or file system lacks what velo asks for), so threads with pread are used.", .{});
            advice.add("Linux 5.6 or newer on a local file system has what velo needs.", .{});
        },
        .NFILE, .MFILE => {
            reason.add(": no file descriptor was left), so threads with pread are used.", .{});
            advice.add("Raise the limit on open files: ulimit -n.", .{});
        },
        else => reason.add("), so threads with pread are used.", .{}),
    }
}

fn denied_by_environment() bool {
    const value = posix.getenv("VELO_IO_DENY_URING") orelse return false;
    return std.mem.eql(u8, value, "1");
}

fn read_number(path: [:0]const u8) ?i64 {
    const fd = posix.openZ(path, .{ .ACCMODE = .RDONLY, .CLOEXEC = true }, 0) catch return null;
    defer posix.close(fd);
    var text: [32]u8 = undefined;
    const len = posix.read(fd, &text) catch return null;
    return std.fmt.parseInt(i64, std.mem.trim(u8, text[0..len], " \n"), 10) catch null;
}

const testing = std.testing;

fn folder_path(folder: *testing.TmpDir, buffer: []u8) ![:0]const u8 {
    const path = try folder.dir.realpath(".", buffer[0 .. buffer.len - 1]);
    buffer[path.len] = 0;
    return buffer[0..path.len :0];
}

test "a folder is probed and left as it was" {
    var folder = testing.tmpDir(.{ .iterate = true });
    defer folder.cleanup();
    var buffer: [posix.PATH_MAX]u8 = undefined;
    const path = try folder_path(&folder, &buffer);
    const report = probe_folder(path, .auto, 64);
    try testing.expectEqual(report.uring_errno == 0, report.kind == .uring);
    try testing.expectEqual(report.direct_errno == 0, report.direct);
    try testing.expect(report.reason.len > 0);
    try testing.expectEqual(report.uring_errno != 0, report.advice.len > 0);
    var entries = folder.dir.iterate();
    try testing.expectEqual(null, try entries.next());

    const asked = probe_folder(path, .threads, 64);
    try testing.expectEqual(.threads, asked.kind);
    try testing.expect(!asked.refused(.threads));
}

test "a folder that is not there still tells about io_uring" {
    const report = probe_folder("/nonexistent/velo", .auto, 8);
    try testing.expectEqual(@as(i32, @intFromEnum(E.NOENT)), report.direct_errno);
    try testing.expect(!report.direct);
    try testing.expect(std.mem.indexOf(u8, report.reason.slice(), "NOENT") != null);
}

test "pages open directly where possible, and buffered on request" {
    var folder = testing.tmpDir(.{});
    defer folder.cleanup();
    var buffer: [posix.PATH_MAX]u8 = undefined;
    try folder.dir.writeFile(.{ .sub_path = "pages", .data = "p" ** (2 * page_size) });
    var path_buffer: [posix.PATH_MAX]u8 = undefined;
    const path = try std.fmt.bufPrintZ(&path_buffer, "{s}/pages", .{try folder_path(&folder, &buffer)});
    const buffered = try open_pages(path, false);
    defer posix.close(buffered.fd);
    try testing.expect(!buffered.direct);
    try testing.expectEqual(0, buffered.direct_errno);
    const either = try open_pages(path, true);
    defer posix.close(either.fd);
    try testing.expectEqual(either.direct, either.direct_errno == 0);
    // /proc refuses O_DIRECT at open: the file is read all the same.
    const refusing = try open_pages("/proc/self/status", true);
    defer posix.close(refusing.fd);
    try testing.expect(!refusing.direct);
    try testing.expectEqual(@as(i32, @intFromEnum(E.INVAL)), refusing.direct_errno);
    try testing.expectError(error.FileNotFound, open_pages("/nonexistent/velo", true));
}

test "every refusal is explained within its field" {
    for ([_]E{ .PERM, .NOSYS, .NOMEM, .INVAL, .MFILE, .IO }) |e| {
        var report: Report = .{ .kind = .threads, .direct = true, .uring_errno = @intFromEnum(e), .direct_errno = 0, .queue_depth = 1 };
        explain_refusal(&report);
        try testing.expect(std.mem.indexOf(u8, report.reason.slice(), @tagName(e)) != null);
        try testing.expect(std.mem.endsWith(u8, report.reason.slice(), "threads with pread are used."));
        if (e != .IO) try testing.expect(std.mem.endsWith(u8, report.advice.slice(), "."));
    }
}
