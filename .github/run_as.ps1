# Runs a command line as this account, or with the rights of an ordinary user, and returns its exit code.
# `runas` does not wait, and does not pass on output. So the exit code and the output are read from files.
param([string]$Account, [string]$Line, [string]$Output, [int]$Minutes = 60)
$script, $code = "$env:RUNNER_TEMP\line.cmd", "$env:RUNNER_TEMP\code"
Remove-Item -Force -ErrorAction Ignore $code, "$code.new"
# The redirection comes first, because cmd takes a digit directly before `>` as the number of a handle.
"@cd /d $PWD`r`n@call $Line > $Output 2> $Output.errors`r`n@>$code.new echo %ERRORLEVEL%`r`n@ren $code.new code" |
  Set-Content -Encoding oem $script
if ($Account -eq "ordinary") { runas /trustlevel:0x20000 "cmd /c $script" } else { cmd /c $script }
if ($Account -eq "ordinary" -and $LASTEXITCODE) { throw "runas failed: $LASTEXITCODE" }
$end = (Get-Date).AddMinutes($Minutes)
while (-not (Test-Path $code) -and (Get-Date) -lt $end) { Start-Sleep -Seconds 1 }
Get-Content -ErrorAction Continue $Output, "$Output.errors"
if (-not (Test-Path $code)) { throw "the command did not end within $Minutes minutes" }
exit [int](Get-Content $code).Trim()
